# SPDX-License-Identifier: Apache-2.0
# Sets and prints the IRQ suspension of the NAPI instances of a network device: perl - DEVICE [NANOSECONDS]. It speaks
# generic netlink (linux/genetlink.h, linux/netdev.h), for which Debian's minimal system has no other program.
use strict;
use Socket;
my ($device, $value) = @ARGV;
my ($sequence, $family) = (0, 16);
open my $file, "<", "/sys/class/net/$device/ifindex" or die "no network device $device\n";
chomp(my $index = <$file>);
socket(my $link, 16, SOCK_RAW, 16) or die "generic netlink: $!\n";
sub attribute {
    my ($type, $bytes) = @_;
    my $text = pack("SSa*", 4 + length $bytes, $type, $bytes);
    return $text . "\0" x (-length($text) & 3);
}
sub attributes {
    my ($bytes, %found) = @_;
    while (length $bytes >= 4) {
        my ($length, $type) = unpack "SS", $bytes;
        last if $length < 4;
        $found{$type & 0x3fff} = substr $bytes, 4, $length - 4;
        $bytes = substr $bytes, ($length + 3) & ~3;
    }
    return %found;
}
# Sends a command and returns the messages of its answer. Each request asks for an acknowledgement or is a dump, so that
# the answer has an end.
sub ask {
    my ($command, $flags, $attributes) = @_;
    my $message = pack("SSLLCCS", $family, $flags | 1, ++$sequence, 0, $command, 1, 0) . $attributes;
    send $link, pack("L", 4 + length $message) . $message, 0, pack("SSLL", 16, 0, 0, 0) or die "netlink: $!\n";
    my @answers;
    while (1) {
        defined recv $link, my $bytes, 65536, 0 or die "netlink: $!\n";
        while (length $bytes >= 16) {
            my ($length, $type) = unpack "LS", $bytes;
            my $body = substr $bytes, 16, $length - 16;
            if ($type == 2 || $type == 3) {
                my $error = -unpack "l", $body;
                $! = $error;
                die "IRQ suspension: $!\n" if $error;
                return @answers;
            }
            push @answers, {attributes(substr $body, 4)};
            $bytes = substr $bytes, ($length + 3) & ~3;
        }
    }
}
my ($found) = eval { ask(3, 4, attribute(2, "netdev\0")) };
my $release = `uname -r`;
chomp $release;
die "Linux $release has no netlink family netdev\n" unless $found;
$family = unpack "S", $found->{1};
my @instances = ask(11, 0x300, attribute(1, pack "L", $index));
die "$device has no NAPI instance\n" unless @instances;
for my $instance (@instances) {
    die "Linux $release has no IRQ suspension\n" unless defined $instance->{7};
    ask(14, 4, attribute(2, $instance->{2}) . attribute(7, pack "Q", $value)) if defined $value;
}
for my $instance (ask(11, 0x300, attribute(1, pack "L", $index))) {
    print unpack(length $instance->{7} == 8 ? "Q" : "L", $instance->{7}), "\n";
}

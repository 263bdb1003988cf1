/*
 * What a pseudo-terminal lacks of a serial port, so that sigrok-cli takes one for a port: modem
 * lines (there are none, so setting them changes nothing) and characters of seven bits (the
 * kernel forces eight; an ASCII frame is the same in both). Preloaded into sigrok-cli by
 * tests/sigrok.rs. Nothing of sigrok itself is replaced.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

int ioctl(int fd, unsigned long request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    int result = (int)syscall(SYS_ioctl, fd, request, argument);
    if (result != -1 || errno != ENOTTY)
        return result;
    switch (request) {
    case TIOCMGET:
        *(int *)argument = 0;
        return 0;
    case TIOCMSET:
    case TIOCMBIS:
    case TIOCMBIC:
        return 0;
    default:
        return result;
    }
}

int tcsetattr(int fd, int when, const struct termios *wanted)
{
    int (*original)(int, int, const struct termios *) = dlsym(RTLD_NEXT, "tcsetattr");
    struct termios settings = *wanted;
    settings.c_cflag = (settings.c_cflag & ~CSIZE) | CS8;
    return original(fd, when, &settings);
}

# The frequencies of the host's ACPI table, and all governors.
for module in acpi-cpufreq cpufreq_powersave cpufreq_userspace cpufreq_ondemand cpufreq_conservative; do
    modprobe $module || fail "cannot load $module"
done

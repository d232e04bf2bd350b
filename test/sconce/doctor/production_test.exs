defmodule Sconce.Doctor.ProductionTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.Doctor.Production

  @vm %{schedulers: 4, dirty_cpu: 4, processors: 4, busy_wait: "default", bound: false}

  defp found(files, opts \\ []) do
    root = tmp_dir!("machine")

    for {path, text} <- files do
      path = Path.join(root, path)
      File.mkdir_p!(Path.dirname(path))
      File.write!(path, text)
    end

    defaults = [
      root: root,
      vm: @vm,
      profile: "release",
      log_level: :info,
      memory: nil,
      background: :nice
    ]

    Map.new(Production.checks(Keyword.merge(defaults, opts)), &{&1.name, &1})
  end

  test "a machine that shows nothing has nothing to mend, and says what is unknown" do
    checks = found(%{})
    for {name, check} <- checks, name != "disk", do: assert(check.mend == nil, name)
    assert checks["CPU governor"].found =~ "unknown"
    assert checks["CPU quota"].found == "none"
    assert checks["disk"].found =~ "free in"
  end

  test "a governor that saves power is named with the command that changes it" do
    governor = &"sys/devices/system/cpu/cpu#{&1}/cpufreq/scaling_governor"
    checks = found(%{governor.(0) => "performance\n", governor.(1) => "powersave\n"})
    assert checks["CPU governor"].found == "performance on 1, powersave on 1"
    assert checks["CPU governor"].mend =~ "--governor performance"
    assert found(%{governor.(0) => "performance\n"})["CPU governor"].mend == nil
  end

  test "the least quota of the cgroups around the process counts, in both versions" do
    checks =
      found(%{
        "proc/self/cgroup" => "0::/pod/app\n",
        "sys/fs/cgroup/pod/cpu.max" => "150000 100000\n",
        "sys/fs/cgroup/pod/app/cpu.max" => "max 100000\n",
        "sys/fs/cgroup/pod/app/cpu.stat" => "usage_usec 5\nnr_periods 40\nnr_throttled 7\n"
      })

    assert checks["CPU quota"].found =~ "1.5 of 4 processors"
    assert checks["CPU quota"].mend =~ "SCONCE_THREADS=2"
    assert checks["CPU throttling"].found =~ "17.5 %"
    assert checks["CPU throttling"].mend

    old =
      found(%{
        "proc/self/cgroup" => "3:cpu,cpuacct:/app\n2:memory:/app\n",
        "sys/fs/cgroup/cpu/app/cpu.cfs_quota_us" => "200000\n",
        "sys/fs/cgroup/cpu/app/cpu.cfs_period_us" => "100000\n"
      })

    assert old["CPU quota"].found =~ "2.0 of 4 processors"
  end

  test "heat, debug logs, an unoptimised library and flags that hurt are named with what mends them" do
    heat = %{"sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count" => "3\n"}

    checks =
      found(heat,
        log_level: :debug,
        profile: "dev",
        vm: %{@vm | busy_wait: "very_long"},
        memory: %{bytes: 1, bound: "cgroup"}
      )

    assert checks["heat"].found =~ "3 times"

    for name <- ["log level", "native library", "flags of the VM", "memory"],
        do: assert(checks[name].mend, name)
  end
end

defmodule Sconce.Doctor.Production do
  @moduledoc false
  # Settings of a machine and of this VM that cost latency or end a run in production.

  alias Sconce.{Config, Figures, Memory, VM}

  @typedoc "The remedy `mend` is nil if nothing is wrong."
  @type check :: %{name: String.t(), found: String.t(), mend: String.t() | nil}

  # Free disk space for three checkpoints of a large policy, in bytes.
  @disk_bytes 1_000_000_000
  @memory_bytes 512_000_000

  @doc "Runs all checks. `:root` is the folder of `sys` and `proc`, `:profile` the build profile of the native library."
  @spec checks(keyword) :: [check]
  def checks(opts \\ []) do
    root = Keyword.get(opts, :root, "/")
    settings = Keyword.get_lazy(opts, :vm, &VM.settings/0)
    threads = config(:threads)

    [
      governor(root),
      quota(root, settings.processors, max(settings.schedulers, threads || 0)),
      throttled(root),
      heat(root),
      memory(Keyword.get_lazy(opts, :memory, &Memory.available/0)),
      schedulers(
        settings,
        threads,
        Keyword.get_lazy(opts, :background, fn -> config(:background) end)
      ),
      flags(VM.harmful(settings)),
      log_level(Keyword.get_lazy(opts, :log_level, &configured_level/0)),
      disk(Keyword.get(opts, :dir, ".")),
      library(opts[:profile])
    ]
  end

  defp check(name, found, mend \\ nil), do: %{name: name, found: found, mend: mend}

  # `mix sconce.doctor` reports invalid settings; this check uses their defaults.
  defp config(name) do
    case Enum.find(Config.shown(), &(&1.name == name)) do
      %{wrong: _expected} -> Config.table()[name][:default]
      %{value: value} -> value
    end
  end

  # The level of the running Logger is Mix's, so this reads the configured one.
  defp configured_level, do: Application.get_env(:logger, :level, :debug)

  defp governor(root) do
    paths =
      Path.wildcard(Path.join(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))

    case for path <- paths, {:ok, text} <- [File.read(path)], do: String.trim(text) do
      [] ->
        check("CPU governor", "unknown: this system does not show it, as most virtual machines")

      governors ->
        slow = Enum.reject(governors, &(&1 == "performance"))
        mend = if slow != [], do: "sudo cpupower frequency-set --governor performance"

        names =
          governors
          |> Enum.frequencies()
          |> Enum.map_join(", ", fn {name, n} -> "#{name} on #{n}" end)

        check("CPU governor", names, mend)
    end
  end

  # Compares the least CPU quota of the process's cgroup and its ancestors, in processors, with the busy threads.
  defp quota(root, processors, busy) do
    case root |> cgroups() |> Enum.flat_map(&quota_of/1) |> Enum.min(fn -> nil end) do
      nil ->
        check("CPU quota", "none")

      quota ->
        found = "#{Float.round(quota, 2)} of #{processors} processors"

        check(
          "CPU quota",
          found,
          if(quota < processors and ceil(quota) < busy, do: less(ceil(quota)))
        )
    end
  end

  # The remedy for a small quota: once it is used up, all threads are paused for the rest of its period.
  defp less(1), do: "raise the CPU limit of the container to two processors or more"

  defp less(whole) do
    "raise the CPU limit of the container, or start with ERL_FLAGS=\"+S #{whole}\" and SCONCE_THREADS=#{whole}"
  end

  defp quota_of(dir) do
    with {:ok, text} <- File.read(Path.join(dir, "cpu.max")),
         [quota, period] <- String.split(text),
         {quota, ""} <- Integer.parse(quota) do
      [quota / String.to_integer(period)]
    else
      _ -> quota_v1(dir)
    end
  end

  defp quota_v1(dir) do
    with {:ok, quota} <- File.read(Path.join(dir, "cpu.cfs_quota_us")),
         {:ok, period} <- File.read(Path.join(dir, "cpu.cfs_period_us")),
         {quota, _} when quota > 0 <- Integer.parse(quota),
         {period, _} <- Integer.parse(period) do
      [quota / period]
    else
      _ -> []
    end
  end

  # The kernel counts from the start of the container, so the result is a share of the container's periods.
  defp throttled(root) do
    shares =
      for dir <- cgroups(root),
          {:ok, text} <- [File.read(Path.join(dir, "cpu.stat"))],
          [_, periods] <- [Regex.run(~r/^nr_periods (\d+)$/m, text)],
          [_, throttled] <- [Regex.run(~r/^nr_throttled (\d+)$/m, text)],
          do: String.to_integer(throttled) / max(String.to_integer(periods), 1)

    case Enum.max(shares, fn -> nil end) do
      nil ->
        check("CPU throttling", "unknown: no cgroup counts it")

      share ->
        found = "in #{Float.round(100 * share, 1)} % of the periods of its container"

        check(
          "CPU throttling",
          found,
          if(share > 0.01, do: "raise the CPU limit of the container")
        )
    end
  end

  defp heat(root) do
    paths =
      Path.wildcard(
        Path.join(root, "sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count")
      )

    case for path <- paths,
             {:ok, text} <- [File.read(path)],
             {n, _} <- [Integer.parse(text)],
             do: n do
      [] -> check("heat", "unknown: this system does not count it")
      counts -> heat_found(Enum.sum(counts))
    end
  end

  defp heat_found(0), do: check("heat", "no processor was slowed down by heat")

  # The count covers the time since the machine started, so there is no remedy to print.
  defp heat_found(n),
    do:
      check(
        "heat",
        "#{Figures.counted(n, "time")} since its start a processor was slowed down by heat"
      )

  # Folders of the process's cgroups, from the innermost to the root, for cgroup v1 and v2.
  defp cgroups(root) do
    with {:ok, text} <- File.read(Path.join(root, "proc/self/cgroup")) do
      for [_, controllers, path] <- Regex.scan(~r/^\d+:([^:]*):(.*)$/m, text),
          mount = mount(controllers),
          up <- ancestors(path),
          do: Path.join([root, mount, up])
    else
      _ -> []
    end
  end

  defp mount(""), do: "sys/fs/cgroup"

  defp mount(controllers),
    do: if("cpu" in String.split(controllers, ","), do: "sys/fs/cgroup/cpu")

  defp ancestors(path) do
    path
    |> Path.split()
    |> Enum.scan(&Path.join(&2, &1))
    |> Enum.map(&String.trim_leading(&1, "/"))
  end

  defp memory(nil), do: check("memory", "unknown on this system")

  defp memory(%{bytes: bytes, bound: bound}) do
    mend = if bytes < @memory_bytes, do: "free some memory, or raise the limit"
    check("memory", "#{Figures.size(bytes)} left (#{Memory.bound(bound)})", mend)
  end

  defp schedulers(%{schedulers: online, processors: processors}, threads, background) do
    training = threads || processors

    found =
      "#{Figures.counted(online, "scheduler")} and #{Figures.counted(training, "training thread")} on " <>
        "#{Figures.counted(processors, "processor")}, training at #{background} priority"

    crowded? = online + training > processors and background == :normal
    check("schedulers", found, if(crowded?, do: "config :sconce, background: :nice"))
  end

  defp flags([]), do: check("flags of the VM", "none that hurt")

  defp flags(harmful) do
    found = Enum.map_join(harmful, "; ", fn {flag, why} -> "#{flag}: #{why}" end)
    check("flags of the VM", found, "change them in rel/vm.args.eex")
  end

  defp log_level(level) when level in [:debug, :all],
    do: check("log level", to_string(level), "config :logger, level: :info")

  defp log_level(level), do: check("log level", to_string(level))

  defp disk(dir) do
    with {output, 0} <- System.cmd("df", ["-Pk", dir], stderr_to_stdout: true),
         [_, free] <- Regex.run(~r/^\S+\s+\d+\s+\d+\s+(\d+)\s/m, output) do
      bytes = 1024 * String.to_integer(free)

      mend =
        if bytes < @disk_bytes,
          do:
            "free some disk: a run that cannot save continues, and loses its steps if it is killed"

      check("disk", "#{Figures.size(bytes)} free in #{Path.expand(dir)}", mend)
    else
      _ -> check("disk", "unknown: df does not answer")
    end
  rescue
    ErlangError -> check("disk", "unknown: there is no df")
  end

  defp library(nil), do: check("native library", "not loaded", "mix sconce.doctor")

  defp library(profile) when profile in ["release", "dist"],
    do: check("native library", "#{profile} profile")

  defp library(profile),
    do:
      check(
        "native library",
        "#{profile} profile: not optimised",
        "unset SCONCE_PROFILE, then mix deps.compile sconce --force"
      )
end

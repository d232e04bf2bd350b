replays = System.get_env("SCONCE_REPLAYS")
nx = System.get_env("SCONCE_NX")

# The tags to exclude follow from the build (with CUDA or without), the driver and the card.
{:ok, %{cuda: cuda}} = Sconce.native_info()
found = Sconce.Native.device_check([0])
driver = not match?({:error, %{details: %{cause: "driver"}}}, found)

# Packages of Python that this machine does not have. The tests of each have its tag.
without =
  Enum.reject([:gymnasium, :onnxruntime], fn package ->
    System.find_executable("python3") != nil and
      match?({_, 0}, System.cmd("python3", ["-c", "import #{package}"], stderr_to_stdout: true))
  end)

chromium = Sconce.Test.Chromium.path()
# Other systems have another program of this name, and some containers have no pseudo-terminals.
pty =
  :os.type() == {:unix, :linux} and System.find_executable("script") != nil and
    match?({_, 0}, System.cmd("script", ["-qec", "true", "/dev/null"], stderr_to_stdout: true))

exclude =
  Sconce.GPU.exunit_exclude() ++
    [:nvml, :slow, cuda: not cuda, driver: not driver, card: found != :ok] ++
    if(replays, do: [], else: [:replays]) ++
    if(nx, do: [], else: [:nx]) ++
    without ++
    if(chromium, do: [], else: [:chromium]) ++
    if(pty, do: [], else: [:pty])

IO.puts(
  "Tests tagged :nvml and :slow are excluded, and without a usable card those tagged :gpu; " <>
    "run them with --include, as in --include gpu."
)

unless replays do
  IO.puts("SCONCE_REPLAYS is not set: tests on real games are skipped.")
end

unless nx do
  IO.puts("SCONCE_NX is not set: tests with Nx and Axon are skipped.")
end

for package <- without do
  IO.puts("python3 has no #{package}: its tests are skipped.")
end

unless chromium do
  IO.puts("There is no Chromium: tests of pages in a browser are skipped.")
end

unless pty do
  IO.puts("script of util-linux makes no pseudo-terminal: the test in a terminal is skipped.")
end

# The tests ignore settings of this shell.
for name <- Sconce.Config.variables(), do: System.delete_env(name)

# Runs of tests are not among the user's runs.
monitored = Path.join(System.tmp_dir!(), "sconce-monitor-#{System.pid()}")
Application.put_env(:sconce, :monitor_dir, monitored)
System.at_exit(fn _status -> File.rm_rf!(monitored) end)

# Nor are measurements under the load of tests among the user's.
tuned = Path.join(System.tmp_dir!(), "sconce-tuner-#{System.pid()}")
Application.put_env(:sconce, :tuner_dir, tuned)
System.at_exit(fn _status -> File.rm_rf!(tuned) end)

# Tests run concurrently; work at background priority would yield to all of them.
Application.put_env(:sconce, :background, :normal)
:ok = Sconce.Native.Call.give_way()

# A machine under load is slow, so the timeout is long. Logs are shown with the failing test.
ExUnit.start(exclude: exclude, assert_receive_timeout: 5_000, capture_log: true)

replays = System.get_env("SCONCE_REPLAYS")

# The tags to exclude follow from the build (with CUDA or without), the driver and the card.
{:ok, %{cuda: cuda}} = Sconce.native_info()
found = Sconce.Native.device_check([0])
driver = not match?({:error, %{details: %{cause: "driver"}}}, found)

# Whether this machine's Python has the package.
gymnasium =
  System.find_executable("python3") != nil and
    match?({_, 0}, System.cmd("python3", ["-c", "import gymnasium"], stderr_to_stdout: true))

exclude =
  [:gpu, :nvml, :slow, cuda: not cuda, driver: not driver, card: found != :ok] ++
    if(replays, do: [], else: [:replays]) ++ if(gymnasium, do: [], else: [:gymnasium])

IO.puts(
  "Tests tagged :gpu, :nvml and :slow are excluded; run them with --include, as in --include gpu."
)

unless replays do
  IO.puts("SCONCE_REPLAYS is not set: tests on real games are skipped.")
end

unless gymnasium do
  IO.puts("python3 has no gymnasium: its tests are skipped.")
end

# The tests ignore settings of this shell.
for name <- Sconce.Config.variables(), do: System.delete_env(name)

# Tests run concurrently; work at background priority would yield to all of them.
Application.put_env(:sconce, :background, :normal)
:ok = Sconce.Native.Call.give_way()

# A machine under load is slow, so the timeout is long. Logs are shown with the failing test.
ExUnit.start(exclude: exclude, assert_receive_timeout: 5_000, capture_log: true)

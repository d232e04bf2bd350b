replays = System.get_env("SCONCE_REPLAYS")

# What a build with CUDA says, or one without it, and what it says where there is no driver, or no card.
{:ok, %{cuda: cuda}} = Sconce.native_info()
found = Sconce.Native.device_check([0])
driver = not match?({:error, %{details: %{cause: "driver"}}}, found)

exclude =
  [:gpu, :nvml, :slow, cuda: not cuda, driver: not driver, card: found != :ok] ++
    if(replays, do: [], else: [:replays])

IO.puts(
  "Tests tagged :gpu, :nvml and :slow are left out; --include gpu and the like run them too."
)

unless replays do
  IO.puts("SCONCE_REPLAYS is not set: tests on real games are skipped.")
end

# Settings of this shell are not the tests'.
for name <- Sconce.Config.variables(), do: System.delete_env(name)

# Tests run beside each other and wait for work that would give way to all of them.
Application.put_env(:sconce, :background, :normal)
:ok = Sconce.Native.Call.give_way()

# A loaded machine may take its time; only what never comes is a failure.
# What is logged is shown beside the test that fails.
ExUnit.start(exclude: exclude, assert_receive_timeout: 5_000, capture_log: true)

defmodule Sconce.Bot.Bridge.ProgramTest do
  use ExUnit.Case, async: true

  alias Sconce.{Bot, Policy}
  alias Sconce.Bot.Bridge.Program
  alias Sconce.Test.MeleeStates

  @moduletag :tmp_dir
  @moduletag timeout: 120_000
  @replayer Path.expand("../../support/replayer.exs", __DIR__)

  defp bridge(dir, plan) do
    MeleeStates.write_plan!(Path.join(dir, "plan"), plan)
    files = [Path.join(dir, "plan"), "1000.0", Path.join(dir, "log")]
    args = ["--erl", "-noinput", @replayer] ++ files
    {Program, command: System.find_executable("elixir"), args: args}
  end

  defp bot(bridge, opts \\ []) do
    test = self()

    {:ok, policy} =
      Policy.init([embedding: {:melee, layout: :packed}, backbone: :gru, hidden_size: 8], seed: 1)

    options = [policy: policy, bridge: bridge, deadline_ms: 10_000, reconnect_ms: 1] ++ opts
    start_supervised!({Bot, [on_game: &send(test, {:game, &1})] ++ options})
  end

  defp logged(dir),
    do: dir |> Path.join("log") |> File.stream!() |> Enum.map(&hd(String.split(&1)))

  defp frames(states), do: for(state <- states, do: {0, {:frame, state}})

  test "a program that dies is started again, and each of its frames has one input", %{
    tmp_dir: dir
  } do
    states = MeleeStates.game(150)
    # The program waits for the inputs before it dies.
    plan = frames(states) ++ [{2000, :die}] ++ frames(states) ++ [{1, {:over, :time}}]
    bot = bot(bridge(dir, plan))
    assert_receive {:game, %{ended: {:closed, {:exit_status, 1}}, decisions: 67}}, 60_000
    assert_receive {:game, %{ended: :time, decisions: 67, skipped: 0}}, 60_000
    :ok = stop_supervised(Bot)
    refute Process.alive?(bot)
    assert Enum.frequencies(logged(dir)) == %{"sent" => 302, "input" => 300}
  end

  test "a message that is none of the protocol's closes the bridge by its name", %{tmp_dir: dir} do
    bot = bot(bridge(dir, frames(MeleeStates.game(100)) ++ [{0, {:hello, 1}}]), reconnect: 1)
    assert_receive {:game, %{ended: {:closed, {:bad_message, {:hello, 1}}}, frames: 17}}, 60_000
    {:ok, info} = Bot.info(bot)
    assert Exception.message(info.error) =~ "the bridge: {:bad_message, {:hello, 1}}"
  end

  test "atoms that this VM does not know are refused, unless the program is trusted", %{
    tmp_dir: dir
  } do
    # The external form of {:frame, atom}, with an atom that is not in this file as a whole.
    name = "unknown_" <> Integer.to_string(System.unique_integer([:positive])) <> "_here"
    message = <<131, 104, 2, 119, 5, "frame", 119, byte_size(name), name::binary>>
    script = Path.join(dir, "write.sh")

    octal =
      for <<(byte <- <<byte_size(message)::32, message::binary>>)>>,
        into: "",
        do: "\\" <> String.pad_leading(Integer.to_string(byte, 8), 3, "0")

    File.write!(script, "#!/bin/sh\nprintf '#{octal}'\ncat >/dev/null\n")
    File.chmod!(script, 0o755)

    {:ok, refusing} = Program.connect(command: script)
    assert {{:closed, {:bad_message, size}}, _bridge} = Program.next(refusing, 30_000)
    assert size == byte_size(message)
    Program.disconnect(refusing)

    {:ok, trusting} = Program.connect(command: script, trust: true)
    assert {{:frame, atom}, _bridge} = Program.next(trusting, 30_000)
    assert Atom.to_string(atom) == name
    Program.disconnect(trusting)
  end

  test "a program that does not exist is an error" do
    assert {:error, {:enoent, "/no/such/program"}} = Program.connect(command: "/no/such/program")
    assert_raise ArgumentError, ~r/command/, fn -> Program.connect([]) end
  end
end

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
    files = [Path.join(dir, "plan"), "1000.0", Path.join(dir, "log"), "0.0"]
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
    script = script(dir, [<<byte_size(message)::32, message::binary>>])

    {:ok, refusing} = Program.connect(command: script)
    assert {{:closed, {:bad_message, reason}}, _bridge} = Program.next(refusing, 30_000)
    assert reason =~ "#{byte_size(message)} bytes with an atom that this VM does not know"
    assert reason =~ "trust: true"
    Program.disconnect(refusing)

    {:ok, trusting} = Program.connect(command: script, trust: true)
    assert {{:frame, atom}, _bridge} = Program.next(trusting, 30_000)
    assert Atom.to_string(atom) == name
    Program.disconnect(trusting)
  end

  # A program that writes pieces of output, each at once, and then reads its input to the end.
  defp script(dir, pieces) do
    script = Path.join(dir, "write#{System.unique_integer([:positive])}.sh")
    lines = for piece <- pieces, do: "printf %b '#{octal(piece)}'\nsleep 0.05\n"
    File.write!(script, ["#!/bin/sh\n", lines, "cat >/dev/null\n"])
    File.chmod!(script, 0o755)
    script
  end

  defp octal(bytes) do
    for <<byte <- bytes>>,
      into: "",
      do: "\\0" <> String.pad_leading(Integer.to_string(byte, 8), 3, "0")
  end

  defp framed(term) do
    message = :erlang.term_to_binary(term)
    <<byte_size(message)::32, message::binary>>
  end

  test "a line of text on the output closes the bridge, and the reason names stdout", %{
    tmp_dir: dir
  } do
    for line <- ["[info] a game begins\n", "\nstarted", "\thi\n"] do
      {:ok, bridge} = Program.connect(command: script(dir, [framed({:menu, 1}), line]))
      assert {{:menu, 1}, bridge} = Program.next(bridge, 30_000)
      assert {{:closed, {:bad_message, reason}}, _bridge} = Program.next(bridge, 30_000)

      assert reason =~ "stdout" and
               reason =~ inspect(String.slice(line, 0, 4)) |> String.slice(1, 4)

      Program.disconnect(bridge)
    end
  end

  test "messages are whole, wherever the output was cut", %{tmp_dir: dir} do
    terms = [{:menu, 1}, {:frame, %{frame: 7, stage: 2}}, {:over, :finished}, {:menu, ""}]
    output = Enum.map_join(terms, &framed/1)

    for size <- [1_000, 7, 3] do
      pieces = for <<piece::binary-size(size) <- output>>, do: piece
      rest = binary_part(output, size * length(pieces), rem(byte_size(output), size))
      {:ok, bridge} = Program.connect(command: script(dir, pieces ++ [rest]))

      Enum.reduce(terms, bridge, fn term, bridge ->
        assert {^term, bridge} = Program.next(bridge, 30_000)
        bridge
      end)

      assert {:none, bridge} = Program.next(bridge, 1)
      Program.disconnect(bridge)
    end
  end

  test "the atoms of each game state are known before its library is" do
    known = MapSet.new(Program.fields())
    full = MeleeStates.full(0)
    {:ok, frame} = Sconce.Compat.Melee.frame(full, 1)

    for state <- [full, MeleeStates.exphil(full), frame],
        do: assert(MapSet.difference(MapSet.new(atoms(state)), known) == MapSet.new())
  end

  defp atoms(atom) when atom in [nil, true, false], do: []
  defp atoms(atom) when is_atom(atom), do: [atom]
  defp atoms(%{} = map), do: map |> Map.to_list() |> atoms()
  defp atoms(list) when is_list(list), do: Enum.flat_map(list, &atoms/1)
  defp atoms(tuple) when is_tuple(tuple), do: tuple |> Tuple.to_list() |> atoms()
  defp atoms(_number), do: []

  test "a program that does not exist is an error" do
    assert {:error, {:enoent, "/no/such/program"}} = Program.connect(command: "/no/such/program")
    assert_raise ArgumentError, ~r/command/, fn -> Program.connect([]) end
  end
end

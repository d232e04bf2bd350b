defmodule Sconce.ZooTest do
  use ExUnit.Case, async: true

  alias Sconce.{Net, Zoo}

  doctest Sconce.Zoo

  # Half a period of tokens or of numbers.
  defp input(%{shape: shape, vocabulary: tokens}) do
    for i <- 1..Enum.product(shape), into: <<>> do
      number = if tokens, do: rem(i, tokens), else: :math.sin(i)
      <<number::float-32-little>>
    end
  end

  defp inputs(%{inputs: [%{name: "input"} = only]}), do: input(only)
  defp inputs(%{inputs: inputs}), do: Map.new(inputs, &{&1.name, input(&1)})

  test "all thirty networks initialise and run, and their outputs have the declared shapes" do
    {:ok, rows} = Zoo.table()
    assert length(rows) == 30

    for row <- rows do
      assert {:ok, net} = Zoo.init(row.name, seed: 2)
      assert net.outline.parameters == row.parameters
      assert {:ok, output} = Net.run(net, inputs(net.spec))
      numbers = for <<number::float-32-little <- output>>, do: number
      assert length(numbers) == Enum.product(row.output), "#{row.name}"
      assert Enum.any?(numbers, &(&1 != 0)), "#{row.name}"
      assert net.bytes > 0 and net.arena_bytes > 0
    end
  end

  test "no network claims to be trained, and each kind has ten" do
    {:ok, rows} = Zoo.table()
    refute Enum.any?(rows, & &1.trained)
    for kind <- [:vision, :audio, :sensor], do: assert(length(Zoo.names(kind)) == 10)
  end

  test "a wrong name raises" do
    assert_raise ArgumentError, ~r/did you mean :micro_yolo/, fn -> Zoo.init(:mikro_yolo) end
    assert_raise ArgumentError, ~r/kind of network/, fn -> Zoo.names(:visions) end
  end
end

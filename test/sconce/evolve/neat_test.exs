defmodule Sconce.Evolve.NeatTest do
  use ExUnit.Case, async: true
  doctest Sconce.Evolve.Neat

  import Sconce.Test.Scratch

  alias Sconce.Error
  alias Sconce.Evolve.Neat

  @inputs [[0, 0], [0, 1], [1, 0], [1, 1]]
  @targets [[0], [1], [1], [0]]

  defp fitness(outputs) do
    for patterns <- outputs do
      4 - Enum.sum(for {[got], [want]} <- Enum.zip(patterns, @targets), do: (got - want) ** 2)
    end
  end

  defp step(neat) do
    {:ok, outputs} = Neat.forward(neat, @inputs)
    {:ok, _generation} = Neat.tell(neat, fitness(outputs))
    outputs
  end

  test "a loop in Elixir is that of fit" do
    {:ok, own} = Neat.new(inputs: 2, outputs: 1, population: 60, seed: 3)
    {:ok, fit} = Neat.new(inputs: 2, outputs: 1, population: 60, seed: 3)
    for _generation <- 1..25, do: step(own)

    assert {:ok, %{generations: 25, reached: false}} =
             Neat.fit(fit, @inputs, @targets, generations: 25)

    assert Neat.forward(own, @inputs) == Neat.forward(fit, @inputs)
    {:ok, stats} = Neat.stats(own)
    assert stats.generation == 25
    assert stats.species |> Enum.map(& &1.size) |> Enum.sum() == 60
    assert stats.best >= stats.generation_best and stats.generation_best > stats.generation_mean
    assert stats.connections >= stats.enabled_connections
  end

  test "the best genome gives the outputs of its fitness" do
    {:ok, neat} = Neat.new(inputs: 2, outputs: 1, seed: 5)

    assert {:ok, %{reached: true}} =
             Neat.fit(neat, @inputs, @targets, generations: 300, stop_at: 3.9)

    {:ok, best} = Neat.best(neat)
    {:ok, outputs} = Neat.run(best.genome, @inputs)
    assert_in_delta hd(fitness([outputs])), best.fitness, 1.0e-6
    assert inspect(neat) =~ "best #{best.fitness}>"
    {:ok, outputs} = Neat.run(best.genome, @inputs, as: :binaries)
    assert %{shape: {4, 1}, type: {:f, 32}} = outputs
  end

  test "a saved population is loaded and goes on with the same bits" do
    path = Path.join(tmp_dir!("neat"), "n.safetensors")
    {:ok, neat} = Neat.new(inputs: 2, outputs: 1, population: 40, add_node: 0.3)
    for _generation <- 1..10, do: step(neat)
    assert :ok = Neat.save(neat, path)
    {:ok, loaded} = Neat.load(path)
    assert inspect(loaded) == inspect(neat)
    for _generation <- 1..10, do: assert(step(loaded) == step(neat))
    assert Neat.best(loaded) == Neat.best(neat)
    assert Neat.stats(loaded) == Neat.stats(neat)

    File.write!(path, binary_part(File.read!(path), 0, 100))
    assert {:error, %Error{kind: :corrupt, op: :load}} = Neat.load(path)
  end

  test "a full disk keeps the old file" do
    dir = tmp_dir!("neat")
    path = Path.join(dir, "n")
    File.write!(path, "old")

    script = """
    {:ok, neat} = Sconce.Evolve.Neat.new(inputs: 30, outputs: 10)
    IO.inspect(Sconce.Evolve.Neat.save(neat, #{inspect(path)}))
    """

    assert {output, 0} = elixir_within(script, 4)
    assert output =~ "kind: :io"
    assert {File.read!(path), File.ls!(dir)} == {"old", ["n"]}
  end

  test "a fitness that is not finite names its genome and changes nothing" do
    {:ok, neat} = Neat.new(inputs: 2, outputs: 1, population: 2)
    before = Neat.forward(neat, @inputs)
    infinity = <<0, 0, 0, 0, 0, 0, 0xF0, 0x7F>>
    fitness = %{data: <<1.0::float-64-little>> <> infinity, shape: {2}, type: {:f, 64}}
    assert {:error, %Error{kind: :non_finite} = error} = Neat.tell(neat, fitness)
    assert Exception.message(error) == "tell: the fitness of genome 1 is not finite (inf)"
    assert Neat.forward(neat, @inputs) == before
    assert {:ok, %{generation: 0, best: nil}} = Neat.stats(neat)
  end

  test "a genome that is no network is refused by name" do
    {:ok, neat} = Neat.new(inputs: 1, outputs: 1, population: 2)
    {:ok, genome} = Neat.genome(neat, 0)
    [first | _rest] = genome.connections
    nodes = genome.nodes ++ [%{id: 3, kind: :hidden}, %{id: 4, kind: :hidden}]

    link = fn innovation, source, target ->
      %{first | innovation: innovation, source: source, target: target}
    end

    cycle = %{
      genome
      | nodes: nodes,
        connections: [link.(0, 0, 3), link.(1, 3, 4), link.(2, 4, 3)]
    }

    for refused <- [Neat.run(cycle, [[1]]), Neat.distance(genome, cycle), Neat.svg(cycle)] do
      assert {:error, %Error{kind: :mismatch} = error} = refused
      assert Exception.message(error) =~ ~r/a cycle through node [34]/
    end

    nowhere = %{genome | connections: [link.(0, 0, 9)]}
    assert {:error, %Error{kind: :not_found}} = Neat.run(nowhere, [[1]])
    assert {:error, %Error{}} = Neat.run(%{genome | connections: [%{weight: 1}]}, [[1]])
    assert {:error, %Error{kind: :mismatch}} = Neat.run(genome, [[1, 2]])
    assert_raise ArgumentError, ~r/genome/, fn -> Neat.run(%{}, [[1]]) end
    assert {:error, %Error{kind: :out_of_range}} = Neat.genome(neat, 2)
    assert_raise ArgumentError, ~r/option :inputs/, fn -> Neat.new(inputs: 0, outputs: 1) end
  end

  test "a picture shows each node and connection, and disabled ones as dashed lines" do
    {:ok, neat} =
      Neat.new(inputs: 2, outputs: 1, population: 20, add_node: 1, stagnation: 99, elitism: 0)

    for _generation <- 1..4, do: step(neat)

    {:ok, genome} = Neat.genome(neat, 7)
    disabled = Enum.reject(genome.connections, & &1.enabled)
    hidden = Enum.filter(genome.nodes, &(&1.kind == :hidden))
    assert disabled != [] and hidden != []
    {:ok, svg} = Neat.svg(genome, title: "a < b")
    count = &(length(String.split(svg, &1)) - 1)
    assert count.("<circle ") == length(genome.nodes)
    assert count.("<path ") == length(genome.connections)
    assert count.("stroke-dasharray") == length(disabled)
    assert svg =~ "a &lt; b"

    # The parts of XML balance, and each number is finite.
    assert count.("<title>") == count.("</title>")
    refute svg =~ ~r/nan|inf/i
    path = Path.join(tmp_dir!("neat"), "genome.svg")
    assert :ok = Neat.write(genome, path, title: "a < b")
    assert File.read!(path) == svg
    assert {:error, %Error{kind: :mismatch}} = Neat.write(genome, path <> ".png")
  end
end

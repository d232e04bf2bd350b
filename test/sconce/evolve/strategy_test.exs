defmodule Sconce.Evolve.StrategyTest do
  use ExUnit.Case, async: true
  doctest Sconce.Evolve.Strategy

  import Sconce.Test.Scratch

  alias Sconce.Error
  alias Sconce.Evolve.Strategy

  @methods [:open_ai_es, :snes, :sep_cma_es, :cma_es]

  defp sphere(x), do: -Enum.sum(Enum.map(x, &(&1 * &1)))

  defp step(strategy) do
    {:ok, candidates} = Strategy.ask(strategy)
    {:ok, _generation} = Strategy.tell(strategy, Enum.map(candidates, &sphere/1))
    candidates
  end

  test "each method moves towards higher fitness" do
    for method <- @methods do
      opts = [method: method, population: 16, sigma: 0.2, learning_rate: 0.05, seed: 2]
      {:ok, strategy} = Strategy.new(List.duplicate(1.0, 5), opts)
      for _generation <- 1..60, do: step(strategy)
      {:ok, mean} = Strategy.mean(strategy)
      assert sphere(mean) > -0.5, "#{method}"
      {:ok, info} = Strategy.info(strategy)
      assert %{method: ^method, generation: 60} = info
      {:ok, best} = Strategy.best(strategy)
      assert info.best == best.fitness
      assert_in_delta sphere(best.solution), best.fitness, 1.0e-5
    end
  end

  test "the same seed gives the same candidates, and another seed others" do
    run = fn seed ->
      {:ok, strategy} = Strategy.new([1.0, 2.0], seed: seed)
      for _generation <- 1..4, do: step(strategy)
    end

    assert run.(1) == run.(1)
    assert run.(1) != run.(2)
  end

  test "a saved strategy is loaded and goes on with the same bits" do
    path = Path.join(tmp_dir!("strategy"), "s.safetensors")

    for method <- @methods do
      {:ok, strategy} = Strategy.new([1.0, 2.0, 3.0], method: method, population: 8)
      step(strategy)
      assert :ok = Strategy.save(strategy, path)
      {:ok, loaded} = Strategy.load(path)
      assert inspect(loaded) == inspect(strategy)
      for _generation <- 1..3, do: assert(step(loaded) == step(strategy))
      assert Strategy.best(loaded) == Strategy.best(strategy)
    end

    File.write!(path, binary_part(File.read!(path), 0, 100))
    assert {:error, %Error{kind: :corrupt, op: :load}} = Strategy.load(path)
  end

  test "a full disk keeps the old file" do
    dir = tmp_dir!("strategy")
    path = Path.join(dir, "s")
    File.write!(path, "old")

    script = """
    {:ok, strategy} = Sconce.Evolve.Strategy.new(List.duplicate(0.0, 5000), method: :snes)
    IO.inspect(Sconce.Evolve.Strategy.save(strategy, #{inspect(path)}))
    """

    assert {output, 0} = elixir_within(script, 4)
    assert output =~ "kind: :io"
    assert {File.read!(path), File.ls!(dir)} == {"old", ["s"]}
  end

  test "a fitness that is not finite names its candidate and changes nothing" do
    {:ok, strategy} = Strategy.new([0.0, 0.0], population: 2)
    asked = Strategy.ask(strategy)
    infinity = <<0, 0, 0, 0, 0, 0, 0xF0, 0x7F>>
    fitness = %{data: <<1.0::float-64-little>> <> infinity, shape: {2}, type: {:f, 64}}
    assert {:error, %Error{kind: :non_finite} = error} = Strategy.tell(strategy, fitness)
    assert Exception.message(error) == "tell: the fitness of candidate 1 is not finite (inf)"
    assert Strategy.ask(strategy) == asked
    assert {:ok, %{generation: 0, best: nil}} = Strategy.info(strategy)
  end

  test "binaries are taken and given" do
    mean = %{data: <<0.5::float-64-little>>, shape: {1}, type: {:f, 64}}
    {:ok, strategy} = Strategy.new(mean, population: 4, as: :binaries)
    assert {:ok, %{data: data, shape: {4, 1}, type: {:f, 32}}} = Strategy.ask(strategy)
    assert byte_size(data) == 16
  end

  test "wrong means and options are refused" do
    assert {:error, %Error{kind: :out_of_range}} = Strategy.new([])
    assert {:error, %Error{kind: :mismatch}} = Strategy.new([[0.0]])
    assert {:error, %Error{kind: :out_of_range}} = Strategy.new(List.duplicate(0.0, 1025))
    assert_raise ArgumentError, ~r/option :sigma/, fn -> Strategy.new([0.0], sigma: 0) end

    assert_raise ArgumentError, ~r/did you mean :snes/, fn ->
      Strategy.new([0.0], method: :snse)
    end
  end
end

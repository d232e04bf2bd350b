defmodule Sconce.Env.CartPoleTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.Env.CartPole
  alias Sconce.{Corpus, Error, Policy}

  doctest CartPole

  defp policy!(inputs, seed \\ 1) do
    spec = [embedding: {:vector, inputs}, heads: [action: {:categorical, 2}]]
    {:ok, policy} = Policy.init(spec ++ [hidden_size: 8, num_layers: 1], seed: seed)
    policy
  end

  describe "demonstrations" do
    test "are equal for equal seeds, and have a label for each frame" do
      {:ok, games} = CartPole.demonstrations(games: 3, seed: 5)
      assert {:ok, ^games} = CartPole.demonstrations(games: 3, seed: 5)
      assert {:ok, others} = CartPole.demonstrations(games: 3, seed: 6)
      assert games != others

      for {x, labels} <- games do
        assert byte_size(x) == 2 * 4 * div(byte_size(labels), 2)
        assert Enum.all?(for(<<label::16-little <- labels>>, do: label), &(&1 in [0, 1]))
      end
    end

    test "become a corpus, with velocities or without" do
      for {velocities, size} <- [{false, 2}, {true, 4}] do
        {:ok, games} = CartPole.demonstrations(games: 2, velocities: velocities)
        into = Path.join(tmp_dir!("cartpole"), "corpus")
        assert {:ok, corpus} = CartPole.corpus(games, into: into, velocities: velocities)
        assert %{games: 2, schema: {:vector, ^size}} = Corpus.info(corpus)
      end
    end

    test "are refused if hardly any game can be long enough" do
      opts = [games: 5, perturb: 1.0, min_steps: 450]
      assert {:error, %Error{kind: :out_of_range}} = CartPole.demonstrations(opts)
    end

    test "raise for wrong options" do
      assert_raise ArgumentError, ~r/did you mean :games/, fn ->
        CartPole.demonstrations(gmaes: 3)
      end

      assert_raise ArgumentError, ~r/:perturb/, fn -> CartPole.demonstrations(perturb: 1.5) end
    end
  end

  describe "a policy" do
    test "plays each episode, and each decision is timed" do
      assert {:ok, played} = CartPole.play(policy!(2), episodes: 5, deterministic: false)
      assert length(played.returns) == 5
      assert played.decisions == Enum.sum(played.returns)
      assert played.mean == Enum.sum(played.returns) / 5
      assert played.median_us > 0 and played.p99_us >= played.median_us
    end

    test "plays the same for equal seeds, and with velocities if it was made for them" do
      play = fn seed ->
        {:ok, %{returns: returns}} =
          CartPole.play(policy!(4), velocities: true, seed: seed, deterministic: false)

        returns
      end

      assert play.(1) == play.(1)
      assert play.(1) != play.(2)
    end

    test "for another env is refused with both sizes" do
      assert {:error, %Error{kind: :mismatch, op: :play, details: %{expected: "2", got: "4"}}} =
               CartPole.play(policy!(4))
    end

    test "stops playing when its caller no longer waits" do
      policy = policy!(2)
      player = spawn(fn -> CartPole.play(policy, episodes: 1000) end)
      Process.exit(player, :kill)
      assert {:ok, _played} = CartPole.play(policy, episodes: 1)
    end
  end
end

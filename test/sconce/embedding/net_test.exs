defmodule Sconce.Embedding.NetTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.{Corpus, Embedding, Env, Error, Net, Policy, PPO, Session, Trainer}

  @seen [input: [1, 8, 8], layers: [{:conv, 4, 3, activation: :relu}, :flatten, {:dense, 6}]]
  @small [backbone: :mlp, hidden_sizes: [8], heads: [side: {:categorical, 2}]]

  defp policy!(seen \\ @seen) do
    {:ok, policy} = Policy.init([embedding: {:net, seen}] ++ @small, seed: 1)
    policy
  end

  # An image with one light pixel.
  defp image(at), do: for(i <- 0..63, do: if(i == at, do: 1.0, else: 0.0))

  test "is data that a checkpoint keeps" do
    policy = policy!()
    assert {:net, %Net.Spec{}} = policy.spec.embedding
    assert inspect(policy) =~ "net 1x8x8"
    path = Path.join(tmp_dir!("net"), "policy.safetensors")
    :ok = Policy.save(policy, path)
    {:ok, loaded} = Policy.load(path)
    assert loaded.spec == policy.spec
    assert Policy.Spec.new(Policy.Spec.to_options(policy.spec)) == policy.spec
    assert {:ok, info} = Policy.info(policy)
    # 4 filters of 9 and a bias, 6 rows of 144 and a bias, the backbone and the head.
    assert info.num_weights == 40 + 6 * 145 + 8 * 7 + (8 * 64 + 64 + 2 * 64 + 2)
  end

  test "decides on images, and a wrong image is refused by name" do
    {:ok, session} = Session.open(policy!())
    assert {:ok, %{choices: first}} = Session.act(session, image(3))

    assert {:ok, _decision} =
             Session.act(session, for(v <- image(9), into: "", do: <<v::float-32-little>>))

    assert first.side in 0..1
    assert {:error, %Error{kind: :mismatch}} = Session.act(session, [1.0, 2.0])
    nan = :binary.copy(<<0, 0, 192, 127>>, 64)
    assert {:error, %Error{kind: :non_finite}} = Session.act(session, nan)
    assert Embedding.pack({:net, @seen}, image(0)) == Embedding.pack({:vector, 64}, image(0))
    assert {:ok, [%{name: "net", width: 6}]} = Embedding.schema({:net, @seen})
  end

  test "refuses networks that would play otherwise than they were trained" do
    init = &Policy.init([embedding: {:net, &1}] ++ @small)
    norm = Keyword.update!(@seen, :layers, &List.insert_at(&1, 1, :batch_norm))
    assert {:error, %Error{kind: :mismatch} = error} = init.(norm)
    assert Exception.message(error) =~ "no batch_norm"

    assert {:error, %Error{kind: :mismatch} = error} =
             init.(input: [1, 8, 8], layers: [{:conv, 2, 3}])

    assert Exception.message(error) =~ "a vector"

    assert_raise ArgumentError, ~r/unknown layer :cnv/, fn ->
      init.(input: [4], layers: [:cnv])
    end

    assert_raise ArgumentError, fn -> init.(:eyes) end
  end

  test "learns by imitation which side of an image is light" do
    dir = tmp_dir!("net")
    :rand.seed(:exsss, {1, 2, 3})

    games =
      for _game <- 1..12 do
        pixels = for _frame <- 1..40, do: :rand.uniform(64) - 1
        {Enum.map(pixels, &image/1), for(at <- pixels, do: if(rem(at, 8) < 4, do: 0, else: 1))}
      end

    into = Path.join(dir, "corpus")
    {:ok, corpus} = Corpus.build({:vector, 64}, games, into: into, heads: @small[:heads])

    options =
      [
        embedding: {:net, @seen},
        out: Path.join(dir, "run"),
        steps: 150,
        batch_size: 32,
        validate_every: 150
      ] ++
        [window_size: 4, stride: 4, loss: :plain, learning_rate: 0.01, val_split: 0.25, seed: 1]

    {:ok, run} = Trainer.start_link([corpus: corpus] ++ Keyword.delete(@small, :heads) ++ options)
    assert {:ok, report} = Trainer.await(run)
    assert report.policy.nll < 0.1
    assert {:ok, policy} = Policy.load(Path.join([dir, "run", "best.safetensors"]))
    {:ok, session} = Session.open(policy)

    for at <- [0, 7, 17, 63], side = if(rem(at, 8) < 4, do: 0, else: 1) do
      assert {:ok, %{choices: %{side: ^side}}} =
               Session.act(session, image(at), deterministic: true)
    end
  end

  test "an environment that shows images gets a network by itself, and normalised images are refused" do
    out = Path.join(tmp_dir!("net"), "run")

    options =
      [env: :pixel_cart_pole, frame_stack: 2, environments: 4, rollout_steps: 8] ++
        [minibatches: 2, steps: 64, hidden_sizes: [8], seed: 1]

    {:ok, run} = PPO.start_link([out: out] ++ options)
    assert {:ok, _report} = PPO.await(run)
    {:ok, policy} = Policy.load(Path.join(out, "last.safetensors"))
    assert {:net, %Net.Spec{inputs: [%{shape: [2, 64, 64]}]}} = policy.spec.embedding
    assert {:ok, %{returns: [_one]}} = Env.play(policy, nil, episodes: 1)

    normalised = [out: out <> "2", normalise_observations: true] ++ options
    {:ok, run} = PPO.start_link(normalised)
    assert {:error, %Error{kind: :mismatch} = error} = PPO.await(run)
    assert Exception.message(error) =~ "normalise_observations"
  end
end

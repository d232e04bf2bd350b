defmodule HostNx.LoopTest do
  use ExUnit.Case, async: true

  alias Sconce.{Corpus, Error}

  # The class of a frame is the sign of its first number, and the bit that of its second.
  defp corpus!(heads, label) do
    dir = Path.join(System.tmp_dir!(), "sconce-loop-#{System.unique_integer([:positive])}")
    on_exit(fn -> File.rm_rf!(dir) end)
    :rand.seed(:exsss, {1, 2, 3})

    games =
      for _game <- 1..4 do
        rows = for _t <- 1..60, do: [:rand.normal(), :rand.normal()]
        # A label is the input that answers a frame.
        {rows, Enum.map(rows, label)}
      end

    {:ok, corpus} = Corpus.build({:vector, 2}, games, into: dir, heads: heads)
    corpus
  end

  defp positive(x), do: if(x > 0, do: 1, else: 0)

  test "Axon learns from the batches of a corpus" do
    heads = [move: {:categorical, 2}, jump: {:bernoulli, 1}]
    corpus = corpus!(heads, fn [x, y] -> [positive(x), positive(y)] end)
    batches = Sconce.Nx.batches(corpus, batch_size: 8, window_size: 10, stride: 5, burn_in: 2)

    [{inputs, targets} | _] = Enum.take(batches, 1)
    assert {Nx.shape(inputs), Nx.type(inputs)} == {{8, 10, 2}, {:f, 32}}
    assert {Nx.shape(targets.actions.move), Nx.type(targets.actions.move)} == {{8, 10}, {:u, 16}}
    assert Nx.shape(targets.actions.jump) == {8, 10, 1}
    assert Nx.to_number(Nx.sum(targets.frame_weights[[.., 0..1]])) == 0.0

    trunk = Axon.input("states", shape: {nil, nil, 2}) |> Axon.dense(16, activation: :tanh)
    model = Axon.container(%{move: Axon.dense(trunk, 2), jump: Axon.dense(trunk, 1)})

    loss = fn targets, logits ->
      bits = Nx.as_type(targets.actions.jump, :f32)
      options = [from_logits: true, reduction: :none]
      bit = Axon.Losses.binary_cross_entropy(bits, logits.jump, options)

      classes = Nx.equal(Nx.new_axis(targets.actions.move, -1), Nx.iota({1, 1, 2}, axis: 2))
      top = Nx.reduce_max(logits.move, axes: [2], keep_axes: true)
      shifted = Nx.subtract(logits.move, top)
      total = Nx.log(Nx.sum(Nx.exp(shifted), axes: [2], keep_axes: true))
      class = Nx.negate(Nx.sum(Nx.multiply(Nx.subtract(shifted, total), classes), axes: [2]))
      Nx.weighted_mean(Nx.add(bit, class), targets.frame_weights)
    end

    state =
      model
      |> Axon.Loop.trainer(loss, Polaris.Optimizers.adam(learning_rate: 0.05), log: 0)
      |> Axon.Loop.run(batches, Axon.ModelState.empty(), epochs: 6)

    {_init, predict} = Axon.build(model)
    {inputs, targets} = batches |> Enum.take(1) |> hd()
    out = predict.(state, inputs)
    right = Nx.equal(Nx.argmax(out.move, axis: 2), targets.actions.move)
    assert Nx.to_number(Nx.mean(right)) > 0.9
    assert Nx.to_number(loss.(targets, out)) < 0.5
  end

  test "numbers to learn are f32, and ids of tables are a second input" do
    corpus =
      corpus!([aim: {:gaussian, 2, -1.0, 1.0}, go: {:categorical, 2}], fn [x, y] ->
        [x / 10, y / 10, positive(x)]
      end)

    batches = Sconce.Nx.batches(corpus.dir, batch_size: 2, window_size: 5)
    [{_inputs, %{actions: actions}}] = Enum.take(batches, 1)
    assert {Nx.shape(actions.aim), Nx.type(actions.aim)} == {{2, 5, 2}, {:f, 32}}
    assert Nx.shape(actions.go) == {2, 5}

    game =
      Sconce.Game.new!(
        name: :nx_game,
        fields: [x: :number, kind: {:id, 3}],
        input: [go: {:choice, 2}]
      )

    dir = Path.join(System.tmp_dir!(), "sconce-loop-#{System.unique_integer([:positive])}")
    on_exit(fn -> File.rm_rf!(dir) end)
    rows = for t <- 1..40, do: %{frame: %{x: t / 40, kind: rem(t, 3)}, input: %{go: rem(t, 2)}}
    {:ok, _corpus} = Corpus.build(game, [rows], into: dir)
    [{inputs, targets}] = dir |> Sconce.Nx.batches(batch_size: 2, window_size: 5) |> Enum.take(1)
    assert {Nx.shape(inputs["ids"]), Nx.type(inputs["ids"])} == {{2, 5, 1}, {:u, 32}}
    assert {2, 5, _features} = Nx.shape(inputs["states"])
    assert Nx.shape(targets.actions.go) == {2, 5}
  end

  test "refuses :as, and raises the errors of a stream" do
    assert_raise ArgumentError, ~r/:as/, fn -> Sconce.Nx.batches("x", as: :binaries) end
    assert_raise Error, fn -> "/nowhere" |> Sconce.Nx.batches() |> Enum.take(1) end
  end
end

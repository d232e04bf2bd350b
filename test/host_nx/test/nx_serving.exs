defmodule HostNx.ServingTest do
  use ExUnit.Case, async: true

  alias Sconce.{Policy, Serving, Session}

  @heads [fire: {:bernoulli, 2}, move: {:categorical, 3}, aim: {:gaussian, 2, -3.0, 1.0}]

  defp policy!(opts \\ []) do
    {:ok, policy} = Policy.init([embedding: {:vector, 4}, heads: @heads] ++ opts, seed: 3)
    policy
  end

  defp frames(shape), do: Nx.sin(Nx.iota(shape))

  # Batches of other sizes round otherwise.
  defp assert_close(a, b),
    do: assert(Nx.to_number(Nx.all_close(a, b, atol: 1.0e-5, rtol: 0)) == 1)

  test "answers windows with the logits of each head" do
    policy = policy!(value_head: true)
    windows = frames({3, 5, 4})
    {:ok, out} = Policy.forward(policy, windows, return_sequences: false)
    answer = Nx.Serving.run(Sconce.Nx.serving(policy, window_size: 5), windows)
    sizes = Map.new(answer, fn {name, tensor} -> {name, Nx.shape(tensor)} end)
    assert sizes == %{fire: {3, 2}, move: {3, 3}, aim: {3, 4}, value: {3, 1}}

    joined = Nx.concatenate([answer.fire, answer.move, answer.aim, answer.value], axis: 1)
    assert Nx.to_binary(joined) == Nx.to_binary(out.logits)
  end

  test "answers one input without an axis of the batch, and an Nx.Batch" do
    serving = Sconce.Nx.serving(policy!(), window_size: 5)
    windows = frames({3, 5, 4})
    all = Nx.Serving.run(serving, windows)
    one = Nx.Serving.run(serving, windows[1])
    assert Nx.shape(one.move) == {3}
    assert_close(one.move, all.move[1])
    batch = Nx.Batch.stack([windows[0], windows[2]])
    two = Nx.Serving.run(serving, batch)
    assert_close(two.move, Nx.take(all.move, Nx.tensor([0, 2])))
    split = Nx.Serving.run(Nx.Serving.batch_size(serving, 2), windows)
    assert_close(split.aim, all.aim)
  end

  test "chooses as a session does" do
    policy = policy!(backbone: :mlp)
    rows = frames({4, 4})
    choices = Nx.Serving.run(Sconce.Nx.serving(policy, choices: true), rows)
    assert {Nx.shape(choices.move), Nx.type(choices.move)} == {{4}, {:u, 16}}

    for i <- 0..3 do
      {:ok, session} = Session.open(policy)
      {:ok, action} = Session.act(session, rows[i], deterministic: true)
      assert Nx.to_number(choices.move[i]) == action.choices.move
      assert Nx.to_list(choices.fire[i]) == action.choices.fire

      for {a, b} <- Enum.zip(Nx.to_list(choices.aim[i]), action.choices.aim),
          do: assert_in_delta(a, b, 1.0e-5)
    end
  end

  @tag :batched_run
  test "batches the requests of processes" do
    policy = policy!()
    serving = Sconce.Nx.serving(policy, window_size: 5)
    options = [serving: serving, name: __MODULE__, batch_size: 8, batch_timeout: 50]
    start_supervised!({Nx.Serving, options})
    windows = frames({8, 5, 4})
    all = Nx.Serving.run(serving, windows)
    parent = self()

    :telemetry.attach(
      __MODULE__,
      [:nx, :serving, :execute, :stop],
      &__MODULE__.executed/4,
      parent
    )

    0..7
    |> Enum.map(&Task.async(fn -> Nx.Serving.batched_run(__MODULE__, windows[&1]) end))
    |> Task.await_many()
    |> Enum.with_index()
    |> Enum.each(fn {out, i} ->
      assert_close(out.move, all.move[i])
    end)

    :telemetry.detach(__MODULE__)
    assert_received :executed
    # Eight requests fill a batch.
    refute_received :executed
  end

  def executed(_name, _measurements, _metadata, parent), do: send(parent, :executed)

  test "serves a Sconce.Serving" do
    policy = policy!()
    serving = start_supervised!({Serving, policy: policy})
    windows = frames({2, 5, 4})
    here = Nx.Serving.run(Sconce.Nx.serving(policy, window_size: 5), windows)
    there = Nx.Serving.run(Sconce.Nx.serving(serving, window_size: 5), windows)
    assert_close(here.move, there.move)
    {:ok, stats} = Serving.stats(serving)
    assert stats.answered == 1
  end

  test "refuses wrong inputs in the process that calls" do
    serving = Sconce.Nx.serving(policy!(), window_size: 5)
    start_supervised!({Nx.Serving, serving: serving, name: :refusing, batch_timeout: 10})

    for wrong <- [frames({2, 6, 4}), frames({2, 5, 3}), frames({4}), Nx.tensor(1)] do
      assert_raise ArgumentError, ~r/input: expected the shape {b, 5, 4} or {5, 4}/, fn ->
        Nx.Serving.batched_run(:refusing, wrong)
      end
    end

    assert_raise ArgumentError, ~r/input: expected the shape/, fn ->
      Nx.Serving.batched_run(:refusing, Nx.Batch.stack([frames({4})]))
    end

    assert_raise ArgumentError, ~r/input/, fn -> Nx.Serving.batched_run(:refusing, [1.0]) end
    assert Process.whereis(:refusing)
  end

  test "refuses heads that need the choices before them, and ended servings" do
    policy = policy!(heads_kind: :autoregressive)
    assert_raise ArgumentError, ~r/independent heads/, fn -> Sconce.Nx.serving(policy) end
    assert_raise Sconce.Error, fn -> Sconce.Nx.serving(:nowhere) end
  end
end

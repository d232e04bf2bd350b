defmodule Sconce.FuzzTest do
  # Calls the public functions with 5,000 frames, options, specs and snapshots from one seed: valid ones with a few
  # terms changed, at any depth. Each call returns a value or an error of a kind other than `:panic`, or raises
  # `ArgumentError` or `Sconce.Error`; afterwards the session, policy and corpus work as before. `fuzz/` does the same
  # below the border.
  use ExUnit.Case, async: false

  # A machine under load is slow.
  @moduletag timeout: 300_000

  import Sconce.Test.Scratch, only: [tmp_dir!: 1]

  alias Sconce.{Corpus, Embedding, Error, Loader, Native, Policy, Session, Trainer}

  @inputs 5_000
  @seed 1
  # A longer call counts as a hang.
  @patience_ms 10_000

  @numbers [0, 1, 2, 3, 7, -1, 0.0, -0.0, 0.5, -1.5, 1.0e-300, 1.0e39, 1.0e308, 65_537] ++
             [0x7FFFFFFF, 0xFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF, 2 ** 70, -(2 ** 70)]
  @terms [
           nil,
           true,
           false,
           :ok,
           :cpu,
           :auto,
           "",
           "a\0b",
           "\e[31m",
           <<0xFF, 0xFE>>,
           [],
           [1 | 2],
           %{}
         ] ++
           [{}, {:vector, 2}, {:melee, []}, [{1, 2}], [nil], <<1::3>>, ~c"text", 1..3, :erlang] ++
           ["../../etc/passwd", "cuda:0", %{__struct__: Range}, <<0, 0, 192, 127>>]

  @heads [fire: {:bernoulli, 2}, move: {:categorical, 3}]
  @spec_options [embedding: {:vector, 2}, backbone: :gru, hidden_size: 4, num_layers: 1] ++
                  [heads: @heads, layer_norm: true]
  @player %{percent: 12.0, stock: 4, facing: 1, x: -20.0, y: 0.0, action: 14, character: 1}
          |> Map.put(:on_ground, true)
  @frame %{
    own: @player,
    opponent: %{@player | x: 20.0, facing: -1},
    stage: 31,
    frame: 600,
    previous_action: %{
      buttons: %{a: true, d_up: true},
      main_stick: %{x: 0.25, y: 0.5},
      c_stick: %{x: 0.5, y: 1.0},
      shoulder: 0.75
    },
    projectiles: [%{owner: :opponent, type: 50, x: 1.0, y: 2.0, speed_x: -3.0}]
  }
  @melee [
           embedding:
             {:melee, [action_embed_size: 2, character_embed_size: 2, stage_embed_size: 2]}
         ] ++
           [backbone: :mlp, hidden_sizes: [4]]

  setup_all do
    dir = tmp_dir!("fuzz")
    game = {for(t <- 1..20, do: [t / 20, 0.0]), for(t <- 1..20, do: [0, 1, rem(t, 3)])}

    {:ok, corpus} =
      Corpus.build({:vector, 2}, [game, game], into: Path.join(dir, "corpus"), heads: @heads)

    replays = Path.join(dir, "replays")
    :ok = Native.corpus_fixtures(replays)
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    {:ok, melee} = Policy.init(@melee, seed: 1)
    {:ok, %{dir: dir, corpus: corpus, replays: replays, policy: policy, melee: melee}}
  end

  test "each frame, option, spec or snapshot is accepted or refused, and nothing is lost",
       context do
    {:ok, session} = Session.open(context.policy, window_size: 4)
    {:ok, melee} = Session.open(context.melee, window_size: 4)
    {:ok, _action} = Session.act(session, [0.5, 0.25])
    {:ok, snapshot} = Session.snapshot(session)

    kinds = [
      {[0.5, 0.25], &Session.act(session, &1)},
      {@frame, &Session.act(melee, &1)},
      {@frame, &Embedding.embed(:melee, &1)},
      {[temperature: 0.5, deterministic: false, press_threshold: 0.6, game_frame: 3] ++
         [previous: %{fire: [1, 0], move: 1}, mask: %{fire: [true, false]}, deadline_ms: 1000],
       &Session.act(session, [0.5, 0.25], &1)},
      {[mode: :carry, window_size: 4, temperature: 1.0, seed: 1, frame_delay: 1, rollback: 2] ++
         [weights: :f32, lane: :auto], &closed(Session.open(context.policy, &1))},
      {[[[0.5, 0.25], [1.0, 0.0]]], &Policy.forward(context.policy, &1)},
      {@spec_options, &Policy.init/1},
      {[batch_size: 2, window_size: 4, stride: 2, as: :binaries, sampling: :shuffled, seed: 1] ++
         [mirror: 0.0, noise: 0.5, frame_delay: 1, prefetch: 1, threads: 1, burn_in: 1],
       &Loader.info(context.corpus, &1)},
      # Mutated paths would be read and written.
      {[min_frames: 1, threads: 1, retry: false],
       &Corpus.import(
         context.replays,
         [into: Path.join(context.dir, "import")] ++ &1
       )},
      {[corpus: context.corpus, batch_size: 2, window_size: 4, steps: 1, threads: 1, stride: 2] ++
         [learning_rate: 0.1, warmup_steps: 1, val_split: 0.5, loss: [label_smoothing: 0.1]],
       &Trainer.plan(@spec_options, &1)},
      {snapshot, &Session.restore(session, &1)}
    ]

    # The unchanged inputs must be accepted, or their mutants would show little.
    for {right, call} <- kinds do
      answer = answer(call, right)
      assert allowed?(answer) and not match?({:error, _}, answer), inspect(answer)
    end

    :rand.seed(:exsss, @seed)
    atoms = :erlang.system_info(:atom_count)

    for index <- 1..@inputs do
      {right, call} = Enum.at(kinds, rem(index, length(kinds)))
      input = Enum.reduce(1..:rand.uniform(3), right, fn _, input -> mutate(input) end)
      {micros, answer} = :timer.tc(fn -> answer(call, input) end)

      assert allowed?(answer),
             "input #{index}: #{inspect(answer)} of #{inspect(input, limit: 200)}"

      assert micros < @patience_ms * 1000,
             "input #{index}: #{micros} us for #{inspect(input, limit: 200)}"
    end

    # Generators and messages make a constant number of atoms, independent of the number of inputs.
    assert :erlang.system_info(:atom_count) - atoms < 1_000
    assert {:ok, _action} = Session.act(melee, @frame)
    assert :ok = Session.restore(session, snapshot)
    assert {:ok, ^snapshot} = Session.snapshot(session)
    assert {:ok, _action} = Session.act(session, [0.5, 0.25])
  end

  defp closed({:ok, session}), do: Session.close(session)
  defp closed(other), do: other

  defp answer(call, input) do
    call.(input)
  rescue
    raised -> {:raised, raised}
  catch
    kind, reason -> {kind, reason}
  end

  defp allowed?({:raised, %ArgumentError{message: message}}),
    do: not (message =~ "errors were found at")

  defp allowed?({:raised, %Error{kind: kind}}), do: kind != :panic
  defp allowed?({:error, %Error{kind: kind}}), do: kind != :panic
  defp allowed?(:ok), do: true
  defp allowed?(ok) when is_tuple(ok), do: elem(ok, 0) == :ok
  defp allowed?(_other), do: false

  defp odd, do: if(:rand.uniform(2) == 1, do: pick(@numbers), else: pick(@terms))
  defp pick(list), do: Enum.at(list, :rand.uniform(length(list)) - 1)

  # Changes one term, at a random depth.
  defp mutate(term) when is_list(term) and term != [] do
    at = if List.improper?(term), do: 0, else: :rand.uniform(length(term)) - 1

    case {List.improper?(term), :rand.uniform(8)} do
      {true, _any} -> odd()
      {_proper, 1} -> List.delete_at(term, at)
      {_proper, 2} -> List.insert_at(term, at, Enum.at(term, at))
      {_proper, 3} -> term ++ [odd()]
      {_proper, 4} -> odd()
      {_proper, _more} -> List.update_at(term, at, &inside/1)
    end
  end

  defp mutate(%{} = term) when map_size(term) > 0 and not is_struct(term) do
    key = term |> Map.keys() |> pick()

    case :rand.uniform(8) do
      1 -> Map.delete(term, key)
      2 -> Map.put(term, odd(), odd())
      3 -> odd()
      _more -> Map.update!(term, key, &mutate/1)
    end
  end

  defp mutate(term) when is_binary(term) and term != "" do
    at = :rand.uniform(byte_size(term)) - 1
    <<before::binary-size(at), byte, rest::binary>> = term

    case :rand.uniform(6) do
      1 -> before
      2 -> before <> rest
      3 -> term <> term
      4 -> odd()
      _more -> before <> <<Bitwise.bxor(byte, 2 ** (:rand.uniform(8) - 1))>> <> rest
    end
  end

  defp mutate({name, value}),
    do: if(:rand.uniform(6) == 1, do: {value, name}, else: {name, mutate(value)})

  defp mutate(_scalar), do: odd()

  # Changes the value of an option far more often than its name.
  defp inside({name, value}) when is_atom(name) do
    if :rand.uniform(10) == 1, do: {odd(), value}, else: {name, mutate(value)}
  end

  defp inside(term), do: mutate(term)
end

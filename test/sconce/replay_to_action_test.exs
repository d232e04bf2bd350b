defmodule Sconce.ReplayToActionTest do
  # Evaluation and play are one computation: the likelihood of the recorded actions under the logits of `act` is that of
  # the evaluation.
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.{Corpus, Native, Policy, Session, Trainer}

  @window 12

  setup do
    dir = tmp_dir!("replay_to_action")
    replays = Path.join(dir, "replays")
    :ok = Native.corpus_fixtures(replays)
    {:ok, dir: dir, replays: Path.wildcard(replays <> "/valid*.slp") |> Enum.take(1)}
  end

  for backbone <- [:mlp, :gru, :lstm], heads <- [:independent, :linear, :autoregressive] do
    test "#{backbone} with #{heads} heads has the same score in play", %{
      dir: dir,
      replays: replays
    } do
      {:ok, corpus} = Corpus.import(replays, into: Path.join(dir, "corpus"))
      policy = policy(unquote(backbone), unquote(heads))
      assert_scores_as_it_plays(policy, corpus, Path.join(dir, "policy.safetensors"))
    end
  end

  for depth <- [1, 4], layout <- [:learned, :packed] do
    test "a queue of #{depth} inputs and a delay of 3 have the same score in play, #{layout}",
         %{dir: dir, replays: replays} do
      {:ok, corpus} = Corpus.import(replays, into: Path.join(dir, "corpus"))
      embedding = {:melee, layout: unquote(layout), queue_depth: unquote(depth), num_delays: 9}
      policy = policy(:gru, :autoregressive, embedding)
      assert_scores_as_it_plays(policy, corpus, Path.join(dir, "policy.safetensors"), 3)
    end
  end

  @tag :replays
  @tag timeout: 600_000
  test "a real game has the same score in play", %{dir: dir} do
    game = Path.join(System.fetch_env!("SCONCE_REPLAYS"), "validation/fox_multishine_closed.slp")
    {:ok, corpus} = Corpus.import(game, into: Path.join(dir, "corpus"))

    assert_scores_as_it_plays(
      policy(:gru, :autoregressive),
      corpus,
      Path.join(dir, "policy.safetensors")
    )
  end

  defp policy(backbone, heads, embedding \\ :melee) do
    size = if backbone == :mlp, do: [hidden_sizes: [24]], else: [hidden_size: 24, num_layers: 2]
    heads = if heads == :linear, do: [head_hidden_size: 0], else: [heads: heads]
    prior = [embedding: embedding, backbone: backbone, prior: true]
    {:ok, policy} = Policy.init(prior ++ heads ++ size, seed: 3)
    policy
  end

  # Evaluation and play read the delay from the notes of the checkpoint.
  defp assert_scores_as_it_plays(policy, corpus, path, delay \\ 0) do
    :ok = Policy.save(policy, path, notes: %{frame_delay: delay})
    {:ok, policy} = Policy.load(path)
    options = [mode: :window, window_size: @window]
    {:ok, report} = Trainer.evaluate(path, corpus, options)

    {:ok, session} = Session.open(policy, [logits: true] ++ options)
    {:ok, games} = Corpus.games(corpus)

    nll =
      for game <- 0..(length(games) - 1), player <- 0..1 do
        {:ok, recording} = Corpus.recording(corpus, game, player)
        :ok = Session.reset(session)
        played(session, Enum.to_list(recording), delay)
      end
      |> List.flatten()

    assert length(nll) == report.policy.frames
    assert_in_delta Enum.sum(nll) / length(nll), report.policy.nll, 1.0e-4
  end

  # The action for a frame comes `delay` frames later; inputs before the first one are given as the queue.
  defp played(session, recording, delay) do
    {frames, labels} = Enum.unzip(recording)
    {before, answers} = Enum.split(labels, delay)

    frames
    |> Enum.zip(answers)
    |> Enum.with_index(fn
      {frame, labels}, 0 -> nll(session, frame, labels, queue: Enum.reverse(before))
      {frame, labels}, _t -> nll(session, frame, labels, [])
    end)
  end

  # NLL of the recorded action in nats: the sum of all six heads, and of the eight bits of the buttons.
  defp nll(session, frame, labels, opts) do
    {:ok, action} = Session.act(session, frame, [choices: labels] ++ opts)
    {bits, classes} = Enum.split(labels, 8)
    buttons = Enum.zip_with(action.logits.buttons, bits, &bit_nll/2)

    sticks =
      Enum.zip_with([:main_x, :main_y, :c_x, :c_y, :shoulder], classes, fn head, class ->
        class_nll(action.logits[head], class)
      end)

    Enum.sum(buttons) + Enum.sum(sticks)
  end

  defp bit_nll(logit, 1), do: :math.log(1 + :math.exp(-logit))
  defp bit_nll(logit, 0), do: :math.log(1 + :math.exp(logit))

  defp class_nll(logits, class) do
    top = Enum.max(logits)
    total = logits |> Enum.map(&:math.exp(&1 - top)) |> Enum.sum()
    :math.log(total) + top - Enum.at(logits, class)
  end
end

defmodule Sconce.DaggerTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch, only: [tmp_dir!: 1]

  alias Sconce.{Corpus, Dagger, Error, Frame, Game, Native, Policy, Session, Trainer}

  doctest Dagger

  defmodule Cautious do
    @behaviour Dagger
    # Counts the frames of a game in its memory.
    @impl true
    def answer(%Frame{}, nil), do: {:skip, 1}

    def answer(%Frame{own: own}, seen) do
      stick = %{x: if(own.x > 0, do: 0.0, else: 1.0), y: 0.5}
      rest = %{x: 0.5, y: 0.5}
      buttons = %{a: rem(seen, 2) == 0}
      {%{buttons: buttons, main_stick: stick, c_stick: rest, shoulder: 0.25}, seen + 1}
    end
  end

  defmodule Ring do
    # A walker of eight directions that shall stay on the circle of radius 1. A step has the length 0.1.
    @pi :math.pi()

    def game do
      Game.new!(
        name: :ring,
        fields: [x: [type: {:range, -3, 3}], y: [type: {:range, -3, 3}]],
        input: [go: [type: {:choice, 8}]]
      )
    end

    @doc "The direction to the point of the circle that lies ahead."
    def expert(%{x: x, y: y}) do
      ahead = :math.atan2(y, x) + 0.3
      angle = :math.atan2(:math.sin(ahead) - y, :math.cos(ahead) - x)
      %{go: Integer.mod(round(angle / (@pi / 4)), 8)}
    end

    @doc "Plays games side by side from angles in radians. Returns the frames of each game."
    def play(angles, frames, choose) do
      first = for angle <- angles, do: {{:math.cos(angle), :math.sin(angle)}, nil}

      {seen, _last} =
        Enum.map_reduce(1..frames, first, fn _frame, walkers ->
          met = Enum.map(walkers, &frame/1)
          {met, Enum.zip_with(walkers, choose.(met), fn {at, _}, go -> {move(at, go), go} end)}
        end)

      Enum.zip_with(seen, & &1)
    end

    defp frame({{x, y}, go}), do: %{x: x, y: y, previous_action: go && %{go: go}}

    defp move({x, y}, go) do
      angle = go * @pi / 4
      {clamp(x + 0.1 * :math.cos(angle)), clamp(y + 0.1 * :math.sin(angle))}
    end

    defp clamp(v), do: v |> max(-3.0) |> min(3.0)

    @doc "The choices of a policy."
    def by(policy, games) do
      sessions =
        for _game <- 1..games do
          {:ok, session} = Session.open(policy, deterministic: true, seed: 1)
          session
        end

      fn met ->
        for {:ok, action} <- Session.act_many(Enum.zip(sessions, met)), do: action.input.go
      end
    end

    def on_ring(games) do
      frames = List.flatten(games)
      near = Enum.count(frames, fn %{x: x, y: y} -> abs(:math.sqrt(x * x + y * y) - 1) < 0.15 end)
      near / length(frames)
    end
  end

  setup do
    {:ok, dir: tmp_dir!("dagger")}
  end

  # The packed rows of one player of a generated replay.
  defp melee(dir) do
    replays = Path.join(dir, "replays")
    :ok = Native.corpus_fixtures(replays)
    [replay | _] = Path.wildcard(replays <> "/valid*.slp")
    {:ok, corpus} = Corpus.import(replay, into: Path.join(dir, "replays-corpus"), progress: false)
    {:ok, recording} = Corpus.recording(corpus, 0, 0)
    {corpus, for({row, _labels} <- recording, do: row)}
  end

  defp run(dir, name, opts) do
    out = Path.join(dir, name)
    {:ok, run} = Trainer.start_link([out: out, threads: 1, val_split: 0.0, loss: :plain] ++ opts)
    {:ok, report} = Trainer.await(run)
    {Path.join(out, "last.safetensors"), report}
  end

  # A run of imitation, and rounds of DAgger with as many steps in total. The games to imitate cover a half of the
  # circle, and the policies play longer games.
  test "a policy that learns from the frames that it meets drifts less than one that only imitates",
       %{dir: dir} do
    angles = for i <- 1..10, do: i / 20
    act = fn frames -> Enum.map(frames, &Ring.expert(&1).go) end

    shown =
      for game <- Ring.play(for(i <- 1..60, do: i / 120), 30, act),
          do: for(frame <- game, do: %{frame: frame, input: Ring.expert(frame)})

    demo = Path.join(dir, "demo")
    {:ok, _corpus} = Corpus.build(Ring.game(), shown, into: demo)
    small = [corpus: demo, backbone: :mlp, hidden_sizes: [32], batch_size: 16, window_size: 4]
    small = small ++ [learning_rate: 2.0e-2, warmup_steps: 0, seed: 5]
    {plain, _report} = run(dir, "plain", [steps: 300] ++ small)
    {first, _report} = run(dir, "round-0", [steps: 50] ++ small)
    into = Path.join(dir, "met")

    aggregated =
      Enum.reduce(1..5, first, fn round, before ->
        {:ok, policy} = Policy.load(before)
        met = Ring.play(angles, 80, Ring.by(policy, 10))
        {:ok, corpus} = Dagger.append(into, met, &Ring.expert/1, game: Ring.game())
        assert {corpus.report.added, corpus.info.games} == {10, 10 * round}
        more = [policy: before, mix: [{into, 0.7}], steps: 50] ++ small
        {file, _report} = run(dir, "round-#{round}", more)
        file
      end)

    {plain_loss, plain_share} = judged(dir, plain, angles)
    {loss, share} = judged(dir, aggregated, angles)
    # Where this was written: 13.1 and 1.8 nats a frame, 0.26 and 0.68 of the frames.
    assert loss < plain_loss / 2
    assert share > plain_share + 0.15
  end

  # The loss of a policy on the frames that it meets, and the share of them on the circle.
  defp judged(dir, file, angles) do
    {:ok, policy} = Policy.load(file)
    games = Ring.play(angles, 100, Ring.by(policy, 10))
    into = Path.join(dir, "judged-#{file |> Path.dirname() |> Path.basename()}")
    {:ok, met} = Dagger.append(into, games, &Ring.expert/1, game: Ring.game())
    {:ok, report} = Trainer.evaluate(file, met)
    {report.policy.nll, Ring.on_ring(games)}
  end

  for {depth, layout} <- [{1, :learned}, {3, :packed}] do
    test "the labels of a Melee policy are its own choices in training, #{layout}, queue #{depth}",
         %{dir: dir} do
      {_corpus, rows} = melee(dir)
      embedding = {:melee, layout: unquote(layout), queue_depth: unquote(depth), num_delays: 4}
      size = [backbone: :gru, hidden_size: 16, num_layers: 1]
      {:ok, policy} = Policy.init([embedding: embedding] ++ size, seed: 3)
      file = Path.join(dir, "expert.safetensors")
      :ok = Policy.save(policy, file)
      some = Enum.take(rows, 120)

      for mode <- [:carry, :window] do
        own = [mode: mode, window_size: 8, frame_delay: 2]
        into = Path.join(dir, "met-#{mode}")
        {:ok, met} = Dagger.append(into, [some], policy, own)
        assert met.report == %{added: 1, known: 0, skipped: 0, frames: 120, labelled: 120}
        assert {met.info.schema, met.info.relabelled, met.info.games} == {:melee, true, 1}
        # The last two frames lack the inputs that were chosen before their answers.
        {:ok, report} = Trainer.evaluate(file, met, own)
        assert report.policy.frames == 118
        for head <- report.policy.heads, do: assert(head.accuracy == 1.0, inspect(head))
        # The games are read with the delay of their play.
        assert {:ok, [%{frame_delay: 2}]} = Corpus.games(met)
        {:ok, other} = Trainer.evaluate(file, met, Keyword.put(own, :frame_delay, 0))
        assert other.policy == report.policy
        # Answers with another delay differ, so the agreement is not by chance.
        {:ok, answers} = Dagger.relabel(some, policy, own)
        {:ok, others} = Dagger.relabel(some, policy, Keyword.put(own, :frame_delay, 0))
        assert Enum.map(answers, & &1.choices) != Enum.map(others, & &1.choices)
      end
    end
  end

  test "a module of the app labels packed frames and skips others, alone and in a mix", %{
    dir: dir
  } do
    {replays, rows} = melee(dir)
    rows = Enum.take(rows, 200)
    {:ok, [:skip | answers]} = Dagger.relabel(rows, Cautious)
    assert length(answers) == 199 and Enum.all?(answers, &is_map/1)
    into = Path.join(dir, "met")
    {:ok, met} = Dagger.append(into, [rows, Enum.drop(rows, 50)], Cautious)
    assert met.report == %{added: 2, known: 0, skipped: 0, frames: 350, labelled: 348}
    assert inspect(met) =~ "melee relabelled · 2 games"
    {:ok, games} = Corpus.games(met)
    [long] = for game <- games, game.frames == 200, do: game
    {:ok, recording} = Corpus.recording(met, Enum.find_index(games, &(&1 == long)))
    assert for({row, _labels} <- recording, do: row) == rows
    # Buttons a to d_up, the main stick, the C-stick, the shoulder.
    {:ok, frame} = rows |> Enum.at(2) |> Frame.unpack()
    x = if frame.own.x > 0, do: 0, else: 16
    assert {_row, [1, 0, 0, 0, 0, 0, 0, 0, ^x, 8, 8, 8, 1]} = Enum.at(recording, 2)
    {:ok, verified} = Corpus.verify(met)
    assert verified.games == 2
    # A known game with another delay is named, because the corpus would keep the first one.
    again = &Dagger.append(into, [Enum.drop(rows, 20), rows], Cautious, frame_delay: &1)
    assert {:error, %Error{kind: :mismatch} = refused} = again.(3)
    message = Exception.message(refused)
    assert message =~ "game 1, frame_delay of a known game: expected none, got 3", message
    assert {:ok, %{info: %{games: 2}}} = Corpus.open(into)

    small = [
      backbone: :gru,
      hidden_size: 8,
      num_layers: 1,
      batch_size: 4,
      window_size: 16,
      steps: 20
    ]

    packed = [embedding: {:melee, layout: :packed, queue_depth: 2, num_delays: 2}, frame_delay: 1]
    learning = [learning_rate: 1.0e-2, warmup_steps: 0]
    {file, _report} = run(dir, "alone", [corpus: into] ++ small ++ packed ++ learning)
    test = self()
    {:ok, taught} = Trainer.evaluate(file, met, progress: &send(test, {&1.done, &1.total}))
    assert_received {346, 346}
    assert taught.policy.frames == 346
    assert taught.validation.frames == 346

    {:ok, new} =
      Policy.init(
        Keyword.take(small, [:backbone, :hidden_size, :num_layers]) ++
          Keyword.take(packed, [:embedding]),
        seed: 1
      )

    untaught = Path.join(dir, "new.safetensors")
    :ok = Policy.save(new, untaught)
    {:ok, untaught} = Trainer.evaluate(untaught, met, window_size: 16, frame_delay: 1)
    assert taught.policy.nll < untaught.policy.nll / 2
    mix = [corpus: replays, mix: [{into, 0.5}], mirror: 0.5]
    assert {_file, %{steps: 20}} = run(dir, "mixed", mix ++ small ++ packed)
    assert {_file, %{steps: 20}} = run(dir, "carried", [corpus: into, unroll: :carry] ++ small)
    # The command line has the same mix.
    args = ["--corpus", replays.dir, "--mix", "#{into}=0.3", "--out", Path.join(dir, "shell")]

    args =
      args ++
        ~w(--backbone mlp --steps 2 --batch-size 2 --window-size 4 --threads 1 --val-split 0)

    ExUnit.CaptureIO.capture_io(fn -> Mix.Tasks.Sconce.Train.run(args) end)
    assert File.regular?(Path.join(dir, "shell/last.safetensors"))
  end

  test "skipped frames have no part in the loss", %{dir: dir} do
    walk = Game.new!(name: :walk, fields: [x: :number], input: [go: {:choice, 2}])
    rows = for i <- 1..60, do: %{x: rem(i, 7) / 7}
    half = fn %{x: x} -> if x > 0.5, do: :skip, else: %{go: 1} end
    {:ok, met} = Dagger.append(Path.join(dir, "met"), [rows], half, game: walk)
    labelled = Enum.count(rows, &(&1.x <= 0.5))
    assert met.report.labelled == labelled
    small = [backbone: :mlp, hidden_sizes: [8], steps: 60, batch_size: 8, window_size: 5]

    {file, _report} =
      run(dir, "run", [corpus: met, learning_rate: 1.0e-2, warmup_steps: 0] ++ small)

    for mode <- [:carry, :window] do
      {:ok, report} = Trainer.evaluate(file, met, mode: mode)
      assert report.policy.frames == labelled
      # The label that a skipped frame has in the file is 0.
      assert report.policy.nll < 0.1
    end
  end

  test "experts of two arguments remember each game by itself", %{dir: dir} do
    walk = Game.new!(name: :walk, fields: [x: :number], input: [go: {:choice, 9}])
    counts = fn %{previous_action: _unknown}, seen -> {%{go: seen || 0}, (seen || 0) + 1} end
    games = [[%{x: 1}, %{x: 2}], [%{x: 3}, %{x: 4}, %{x: 5}]]
    {:ok, met} = Dagger.append(Path.join(dir, "met"), games, counts, game: walk)

    labels =
      for i <- 0..1 do
        {:ok, recording} = Corpus.recording(met, i)
        for {_row, [label]} <- recording, do: label
      end

    assert Enum.sort(labels) == [[0, 1], [0, 1, 2]]
  end

  test "a policy of a declared game is an expert", %{dir: dir} do
    game = Ring.game()

    {:ok, policy} =
      Policy.init([embedding: {game, queue_depth: 2}, backbone: :gru, hidden_size: 8], seed: 1)

    rows = for i <- 1..20, do: %{x: i / 10, y: -i / 20, previous_action: %{go: rem(i, 8)}}
    {:ok, answers} = Dagger.relabel(rows, policy)
    assert Enum.all?(answers, &(&1.input.go in 0..7))
    {:ok, again} = Dagger.relabel(rows, policy)
    assert again == answers
    {:ok, sampled} = Dagger.relabel(rows, policy, deterministic: false, seed: 4)
    assert Enum.map(sampled, & &1.input) != Enum.map(answers, & &1.input)
    {:ok, met} = Dagger.append(Path.join(dir, "met"), [rows], policy)
    assert %Game{} = met.info.schema
    assert met.info.relabelled and inspect(met) =~ "ring 1 relabelled"
  end

  test "a corpus grows by games that it does not have", %{dir: dir} do
    into = Path.join(dir, "met")
    walk = Game.new!(name: :walk, fields: [x: :number], input: [go: {:choice, 2}])
    append = &Dagger.append(into, &1, &2, game: walk)
    one = fn _frame -> %{go: 1} end
    {:ok, first} = append.([[%{x: 1}]], one)
    never = fn _frame -> :skip end
    {:ok, skipped} = append.([[%{x: 9}], []], never)
    assert %{added: 0, skipped: 2} = skipped.report
    {:ok, both} = append.([[%{x: 1}], [%{x: 2}], [%{x: 2}]], one)
    assert %{added: 1, known: 2, frames: 1} = both.report
    # Other answers to the same frames are another game.
    {:ok, third} = append.([[%{x: 1}]], fn _frame -> %{go: 0} end)
    assert third.info.games == 3
    assert first.info.games == 1
    # An expert that raises, and a bad answer in a later game, add nothing.
    assert_raise RuntimeError, fn -> append.([[%{x: 5}], [%{x: 6}]], &raises/1) end

    wrong = fn %{x: x} -> %{go: if(x > 7, do: 2, else: 1)} end
    assert {:error, %Error{op: :append} = error} = append.([[%{x: 7}], [%{x: 7}, %{x: 8}]], wrong)
    assert Exception.message(error) =~ "game 1, frame 1, go: 2 is outside 0..1"
    {:ok, same} = Corpus.open(into)
    assert same.info.games == 3
    assert length(File.ls!(Path.join(into, "games"))) == 3
    # The lock is free again.
    assert {:ok, _corpus} = append.([[%{x: 10}]], one)
  end

  defp raises(%{x: x}), do: if(x > 5, do: raise("out of ideas"), else: %{go: 1})

  test "wrong frames, answers, games and experts are named", %{dir: dir} do
    into = Path.join(dir, "met")
    walk = Game.new!(name: :walk, fields: [x: :number], input: [go: {:choice, 2}])
    one = fn _frame -> %{go: 1} end
    said = fn {:error, %Error{} = error} -> Exception.message(error) end

    assert said.(Dagger.append(into, [[%{x: 1}], [%{y: 1}]], one, game: walk)) =~
             "game 1, frame 0, x not found"

    assert said.(Dagger.relabel([%{x: 1}], fn _ -> :jump end, game: walk)) =~ "frame 0, answer"

    assert said.(Dagger.relabel([%{x: 1}], fn _ -> %{} end, game: walk)) =~
             "frame 0, answer.go not found"

    assert said.(Dagger.relabel([%{x: 1}], fn _, _ -> %{go: 1} end, game: walk)) =~
             "expected {answer, memory}"

    assert said.(Dagger.relabel([<<1, 2>>], one)) =~
             "frame 0, frame: expected 396 bytes, got 2 bytes"

    nan = <<0x7FC00000::32-little, 0::size(64)>>
    assert said.(Dagger.relabel([nan], one, game: walk)) =~ "x: expected finite numbers"
    refute File.exists?(into)

    {:ok, policy} =
      Policy.init([embedding: Ring.game(), backbone: :mlp, hidden_sizes: [8]], seed: 1)

    assert said.(Dagger.relabel([%{x: 1}], policy, game: walk)) =~
             "expert: expected a policy of this game"

    assert said.(Dagger.relabel([%{x: 1, y: 9}], policy)) =~ "frame 0, y: 9 is outside -3..3"
    {:ok, _met} = Dagger.append(into, [[%{x: 1}]], one, game: walk)
    assert {:error, %Error{kind: :mismatch}} = Dagger.append(into, [[%{x: 1, y: 1}]], policy)

    raised = &assert_raise(ArgumentError, &1, &2)

    raised.(~r/expert: expected a Sconce.Policy, a function/, fn -> Dagger.relabel([], String) end)

    raised.(~r/expert/, fn -> Dagger.relabel([], fn -> 1 end) end)
    raised.(~r/option :game/, fn -> Dagger.relabel([], one, game: :chess) end)
    raised.(~r/rows: expected an enumerable/, fn -> Dagger.relabel(3, one) end)
    raised.(~r/game 0, rows/, fn -> Dagger.append(into, [3], one, game: walk) end)
    raised.(~r/games: expected an enumerable/, fn -> Dagger.append(into, 3, one, game: walk) end)
    vectors = [embedding: {:vector, 2}, backbone: :mlp, heads: [a: {:categorical, 2}]]
    {:ok, vectors} = Policy.init(vectors, seed: 1)

    raised.(~r/a policy of Melee or of a Sconce.Game, got vectors/, fn ->
      Dagger.relabel([], vectors)
    end)
  end
end

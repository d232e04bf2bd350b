defmodule Sconce.ContinuousTest do
  use ExUnit.Case, async: true

  alias Sconce.{Action, Corpus, Error, Game, Loader, Policy, Session, Trainer}
  alias Sconce.Policy.Spec

  @moduletag :tmp_dir

  # A cart in the wind, controlled by a number (steer), a button (boost) and a choice (gear).
  defmodule Cart do
    use Sconce.Game,
      fields: [
        x: [type: {:range, -1, 1}, mirror: :negate],
        wind: [type: {:id, 3}, width: 3, mirror: [{0, 2}]],
        left: [type: :number, scale: 20, default: 0, doc: "Frames until the game ends."]
      ],
      input: [
        steer: [type: {:continuous, -1, 1}, mirror: :flip, rest: 0],
        boost: [type: {:flags, [:on]}],
        gear: [type: {:choice, 2}]
      ]
  end

  # The expert's steering, to which games add noise of deviation 0.05.
  defp steer(x, wind), do: 0.6 * (1 - wind) - 0.3 * x

  defp game(seed, frames) do
    :rand.seed(:exsss, {seed, 1, 2})
    wind = :rand.uniform(3) - 1

    for _ <- 1..frames do
      x = :rand.uniform() * 2 - 1
      steer = steer(x, wind) + 0.05 * :rand.normal()
      frame = %{x: x, wind: wind}

      %{
        frame: frame,
        input: %{steer: steer, boost: %{on: x > 0}, gear: if(wind == 1, do: 1, else: 0)}
      }
    end
  end

  # A frame after the expert's previous input.
  defp after_input(x, wind) do
    gear = if wind == 1, do: 1, else: 0
    before = %{steer: steer(0.0, wind), boost: %{on: false}, gear: gear}
    %Cart.Frame{x: x, wind: wind, previous_action: before}
  end

  defp csv(rows, extra \\ []) do
    names = Game.columns(Cart) ++ for {name, _value} <- extra, do: "#{name}"

    lines =
      for %{frame: f, input: i} <- rows do
        row = [f.x, f.wind, Map.get(f, :left, 0), i.steer, i.boost.on, i.gear]
        Enum.join(row ++ for({_name, value} <- extra, do: value), ",")
      end

    Enum.join([Enum.join(names, ",") | lines], "\n")
  end

  defp train(corpus, opts) do
    with {:ok, run} <- Trainer.start_link([corpus: corpus] ++ opts),
         do: Trainer.await(run, 120_000)
  end

  @small [
           backbone: :mlp,
           hidden_sizes: [32],
           window_size: 8,
           stride: 2,
           batch_size: 32,
           val_split: 0.0
         ] ++
           [learning_rate: 0.01, loss: :plain, seed: 1]

  describe "a game with numbers among its inputs" do
    test "shows them, and its Spec survives the native side unchanged" do
      assert inspect(Cart.__game__()) ==
               "#Sconce.Game<cart 1 · 3 fields · steer(2) boost(1) gear(2)>"

      assert Game.columns(Cart) == ~w(x wind left steer boost.on gear)

      assert Game.columns(
               Game.new!(name: :g, fields: [x: :number], input: [a: {:continuous, 2, 0, 1}])
             ) ==
               ~w(x a[0] a[1])

      {:ok, policy} = Policy.init([embedding: Cart, heads: :autoregressive, prior: true], seed: 1)
      assert [%{name: :steer, kind: {:gaussian, 1, -1.0, 1.0}} | _] = policy.spec.heads
      assert Spec.new(policy.spec) == policy.spec
      assert Spec.new(Spec.to_options(policy.spec)) == policy.spec
    end

    test "is imported from CSV, and values out of bounds are named", %{tmp_dir: dir} do
      rows = game(1, 4)
      bad = put_in(Enum.at(rows, 2), [:input, :steer], 1.5)
      File.write!(dir <> "/good.csv", csv(rows, log_likelihood: -0.5))
      File.write!(dir <> "/bad.csv", csv(List.replace_at(rows, 2, bad), log_likelihood: -0.5))
      File.write!(dir <> "/nan.csv", csv(rows, log_likelihood: "nan"))
      {:ok, corpus} = Corpus.import(dir, game: Cart, into: dir <> "/corpus", min_frames: 1)
      assert corpus.info.games == 1
      said = Map.new(corpus.report.skipped, &{Path.basename(&1.file), &1.detail})
      assert said["bad.csv"] == "line 4, column steer: 1.5 is outside -1..1"
      assert said["nan.csv"] =~ "line 2, column log_likelihood"

      {:ok, recording} = Corpus.recording(corpus, 0)
      [{_frame, [steer, on, gear]} | _] = recording
      first = hd(rows).input
      assert_in_delta steer, first.steer, 1.0e-6
      assert {on, gear} == {if(first.boost.on, do: 1.0, else: 0.0), first.gear * 1.0}
    end

    test "is learned, scored and played", %{tmp_dir: dir} do
      for seed <- 1..12, do: File.write!(dir <> "/#{seed}.csv", csv(game(seed, 60)))
      {:ok, corpus} = Corpus.import(dir, game: Cart, into: dir <> "/corpus")

      for {name, opts} <- [
            plain: [],
            whole:
              [heads: :autoregressive, prior: true, embedding: {Cart, queue_depth: 2}] ++
                [mirror: 0.5, scheduled_sampling: 0.2]
          ] do
        opts = Keyword.merge(@small, [steps: 400, val_split: 0.2, out: dir <> "/#{name}"] ++ opts)
        {:ok, report} = train(corpus, opts)
        names = for head <- report.policy.heads, do: head.name
        assert names == ~w(steer boost gear)

        # Noise of deviation 0.05 allows at best -1.58 nats; a policy that ignores x and wind has 0.6.
        steer = hd(report.policy.heads)
        assert steer.nll < -1.0 and steer.accuracy > 0.6
        for baseline <- report.baselines, do: assert(report.policy.nll < baseline.report.nll - 1)

        {:ok, policy} = Policy.load(dir <> "/#{name}/best.safetensors")
        {:ok, session} = Session.open(policy, deterministic: true)

        for {x, wind} <- [{-0.5, 0}, {0.5, 1}, {0.9, 2}] do
          {:ok, action} = Session.act(session, after_input(x, wind))
          assert_in_delta Cart.action(action).steer, steer(x, wind), 0.15
          assert [number] = action.choices.steer
          assert is_float(number) and number == action.input.steer
        end
      end
    end

    test "plays as its forward passes predict, and keeps its memory in snapshots", %{tmp_dir: dir} do
      for heads <- [:independent, :autoregressive], critic <- [:shared, :separate] do
        spec =
          [embedding: {Cart, queue_depth: 2}, heads: heads, prior: true, value_head: true] ++
            [critic: critic, backbone: :gru, hidden_size: 16, num_layers: 1]

        {:ok, policy} = Policy.init(spec, seed: 3)
        path = dir <> "/#{heads}.safetensors"
        :ok = Policy.save(policy, path)
        {:ok, policy} = Policy.load(path)
        assert policy.spec.value_head
        {:ok, session} = Session.open(policy, seed: 5)
        frames = for i <- 1..6, do: %Cart.Frame{x: i / 7, wind: rem(i, 3)}
        actions = for f <- frames, {:ok, a} <- [Session.act(session, f, logits: true)], do: a

        assert %{steer: [_mean, _log_std], boost: [_], gear: [_, _], value: [value]} =
                 hd(actions).logits

        assert is_float(value)
        assert Enum.uniq_by(actions, & &1.input.steer) |> length() == 6

        # A session restored from a snapshot makes the same decision.
        {:ok, snapshot} = Session.snapshot(session)
        {:ok, next} = Session.act(session, hd(frames))
        {:ok, other} = Session.open(policy, seed: 5)
        :ok = Session.restore(other, snapshot)
        assert {:ok, ^next} = Session.act(other, hd(frames))

        # A given action is scored unchanged.
        given = %{steer: [0.25], boost: [1], gear: 1}
        assert {:ok, %Action{choices: ^given}} = Session.act(other, hd(frames), choices: given)

        assert {:error, %Error{kind: :out_of_range, details: %{field: "steer"}}} =
                 Session.act(other, hd(frames), choices: %{given | steer: [1.25]})
      end
    end
  end

  describe "imitation weighted by advantages" do
    # Half of the frames have the right input and a reward, the other half a wrong input.
    defp mixed(seed, frames) do
      :rand.seed(:exsss, {seed, 5, 2})

      for _ <- 1..frames do
        x = :rand.uniform() * 2 - 1
        right? = :rand.uniform() < 0.5
        side = if x > 0 == right?, do: 0.5, else: -0.5
        steer = side + 0.05 * :rand.normal()
        input = %{steer: steer, boost: %{on: x > 0 == right?}, gear: 0}
        %{frame: %{x: x, wind: 0}, input: input, reward: if(right?, do: 1, else: 0)}
      end
    end

    test "learns the rewarded inputs, whereas plain imitation learns all inputs", %{tmp_dir: dir} do
      games = for seed <- 1..8, do: mixed(seed, 100)
      {:ok, corpus} = Corpus.build(Cart, games, into: dir <> "/corpus", columns: [:reward])

      play = fn name, opts ->
        {:ok, report} =
          train(corpus, Keyword.merge(@small, [steps: 400, out: dir <> name] ++ opts))

        {:ok, policy} = Policy.load(dir <> name <> "/last.safetensors")
        {:ok, session} = Session.open(policy, deterministic: true)

        right =
          for i <- -9..9//2 do
            {:ok, action} = Session.act(session, %Cart.Frame{x: i / 10, wind: 0}, logits: true)
            [boost] = action.logits.boost
            if i > 0, do: {action.input.steer, boost}, else: {-action.input.steer, -boost}
          end

        {steers, boosts} = Enum.unzip(right)
        {Enum.sum(steers) / 10, Enum.sum(boosts) / 10, List.last(report.history)}
      end

      {steer, boost, _last} = play.("/plain", [])
      assert abs(steer) < 0.15 and abs(boost) < 1

      options = [value_head: true, advantage_temperature: 0.1, discount: 0]
      {steer, boost, last} = play.("/weighed", options)
      assert steer > 0.4 and boost > 3

      # Whether a frame was answered rightly is unpredictable; its return is 1 with probability 1/2.
      assert_in_delta last.figures.value_loss, 0.125, 0.02
      assert last.figures.advantage_weight > 1
    end

    test "learns the values of a closed form", %{tmp_dir: dir} do
      # A frame in wind w has reward w, so the return k frames before the end is w (1 - d^k) / (1 - d).
      frames = 24

      games =
        for seed <- 1..12 do
          wind = rem(seed, 3)
          :rand.seed(:exsss, {seed, 7, 2})

          for t <- 0..(frames - 1) do
            frame = %{x: 0.0, wind: wind, left: frames - t}

            %{
              frame: frame,
              input: %{
                steer: (0.3 * :rand.normal()) |> max(-0.9) |> min(0.9),
                boost: %{},
                gear: 0
              },
              reward: wind / 4,
              end: t == frames - 1
            }
          end
        end

      {:ok, corpus} = Corpus.build(Cart, games, into: dir <> "/corpus", columns: [:reward, :end])

      options =
        [
          steps: 1500,
          window_size: 4,
          stride: 1,
          max_grad_norm: 1000,
          out: dir <> "/run",
          hidden_sizes: [32, 32]
        ] ++
          [value_head: true, advantage_temperature: 1, discount: 0.9, value_weight: 1]

      {:ok, _report} = train(corpus, Keyword.merge(@small, options))
      {:ok, policy} = Policy.load(dir <> "/run/last.safetensors")
      {:ok, session} = Session.open(policy)

      for wind <- 0..2, left <- [4, 8, 12, 18] do
        # The first frame has no previous action.
        before = if left < frames, do: %{steer: 0.1, boost: %{}, gear: 0}
        frame = %Cart.Frame{x: 0.0, wind: wind, left: left, previous_action: before}
        {:ok, action} = Session.act(session, frame, logits: true)
        expected = wind / 4 * (1 - 0.9 ** left) / 0.1
        assert_in_delta hd(action.logits.value), expected, 0.2 + 0.12 * expected
      end
    end

    test "is refused without rewards, and a value head is refused without it", %{tmp_dir: dir} do
      {:ok, corpus} = Corpus.build(Cart, [mixed(1, 20)], into: dir <> "/corpus")
      run = &train(corpus, @small ++ [steps: 1, out: dir <> "/run"] ++ &1)
      assert {:error, error} = run.(value_head: true, advantage_temperature: 1)
      assert Exception.message(error) =~ "column reward of the corpus not found"
      {:ok, corpus} = Corpus.build(Cart, [mixed(1, 20)], into: dir <> "/c", columns: [:reward])
      run = &train(corpus, @small ++ [steps: 1, out: dir <> "/run"] ++ &1)
      assert {:error, error} = run.(advantage_temperature: 1)
      assert Exception.message(error) =~ "heads: expected a value (value_head: true), got none"
      assert {:error, error} = run.(value_head: true)
      assert Exception.message(error) =~ "heads.value: expected an advantage_temperature"

      assert_raise ArgumentError, ~r/:discount.*advantage_temperature/, fn ->
        run.(discount: 0.5)
      end
    end

    test "resumes bit for bit where it was stopped", %{tmp_dir: dir} do
      games = for seed <- 1..4, do: mixed(seed, 40)
      {:ok, corpus} = Corpus.build(Cart, games, into: dir <> "/corpus", columns: [:reward])

      opts =
        @small ++
          [value_head: true, advantage_temperature: 0.5, lr_schedule: :constant, warmup_steps: 0]

      {:ok, _} = train(corpus, opts ++ [steps: 12, out: dir <> "/whole"])
      {:ok, _} = train(corpus, opts ++ [steps: 6, out: dir <> "/parts"])
      {:ok, _} = train(corpus, opts ++ [steps: 12, out: dir <> "/parts", resume: true])

      [whole, parts] =
        for run <- ~w(whole parts) do
          {:ok, policy} = Policy.load(dir <> "/#{run}/last.safetensors")
          {:ok, pass} = Policy.forward(policy, [[%Cart.Frame{x: 0.3, wind: 1}]])
          pass.logits
        end

      assert whole == parts
    end
  end

  describe "vectors with numbers as labels" do
    test "are stored unchanged, streamed, learned and played", %{tmp_dir: dir} do
      :rand.seed(:exsss, {1, 2, 3})
      point = fn -> :rand.uniform() * 2 - 1 end

      games =
        for _ <- 1..6 do
          rows = for _ <- 1..50, do: {point.(), point.()}
          labels = for {a, b} <- rows, do: [2 + 0.8 * a, 2 - 0.5 * b, if(a > 0, do: 1, else: 0)]
          {Enum.map(rows, &Tuple.to_list/1), labels}
        end

      heads = [aim: {:gaussian, 2, 1, 3}, go: {:bernoulli, 1}]
      {:ok, corpus} = Corpus.build({:vector, 2}, games, into: dir <> "/corpus", heads: heads)

      [batch] =
        corpus |> Loader.stream(batch_size: 2, window_size: 5, as: :binaries) |> Enum.take(1)

      assert %{type: {:f, 32}, shape: {2, 5, 3}} = batch.actions
      <<first::float-32-little, _::binary>> = batch.actions.data
      assert first >= 1 and first <= 3

      {:ok, _report} = train(corpus, Keyword.merge(@small, steps: 400, out: dir <> "/run"))
      {:ok, policy} = Policy.load(dir <> "/run/last.safetensors")
      assert inspect(policy) =~ "aim(4) go(1)"
      {:ok, session} = Session.open(policy, deterministic: true)
      {:ok, action} = Session.act(session, [0.5, -0.5])
      assert [a, b] = action.choices.aim
      assert_in_delta a, 2.4, 0.1
      assert_in_delta b, 2.25, 0.1
      assert action.choices.go == [1]

      assert {:error, error} =
               Corpus.build({:vector, 2}, [{[0.0, 0.0], [3.5, 2, 1]}],
                 into: dir <> "/c",
                 heads: heads
               )

      assert Exception.message(error) =~ "game 0, frame 0, label 0: 3.5 is outside 1..3"

      assert_raise ArgumentError, ~r/head :aim: expected/, fn ->
        Corpus.build({:vector, 2}, games, into: dir <> "/c", heads: [aim: {:gaussian, 2, 3, 1}])
      end
    end
  end
end

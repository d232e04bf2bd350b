defmodule Sconce.GameTest do
  use ExUnit.Case, async: true

  alias Sconce.{Action, Corpus, Embedding, Error, Game, Policy, Session, Trainer}
  alias Sconce.Policy.Spec

  doctest Sconce.Game

  # A puck that slides over ice of four kinds, with the input of its player.
  defmodule Puck do
    use Sconce.Game,
      version: 3,
      fields: [
        x: [type: {:range, -1, 1}, mirror: :negate, doc: "from the left to the right"],
        y: [type: {:range, 0, 1}],
        speed: [type: :number, scale: 10, mirror: :negate],
        ice: [type: {:id, 4}, width: 3],
        under: [type: {:id, 4}, table: :ice],
        side: [type: {:one_hot, 3}, mirror: [{0, 2}], default: 1],
        rested: [type: :flag, default: false],
        left_wall: [type: {:range, 0, 2}, mirror: {:swap, :right_wall}],
        right_wall: [type: {:range, 0, 2}, mirror: {:swap, :left_wall}],
        rays: [type: {:vector, 2}, default: 0]
      ],
      input: [
        buttons: [type: {:flags, [:left, :right, :brake]}, mirror: [left: :right], rest: false],
        push: [type: {:axis, -1, 1}, steps: 5, mirror: :flip, rest: 0],
        gear: [type: {:choice, 3}]
      ]
  end

  defp frame(opts \\ []) do
    Map.merge(
      %{x: 0.5, y: 0.25, speed: 5, ice: 2, under: 0, left_wall: 1.5, right_wall: 0.5},
      Map.new(opts)
    )
  end

  defp train(corpus, opts) do
    with {:ok, run} <- Trainer.start_link([corpus: corpus] ++ opts),
         do: Trainer.await(run, 120_000)
  end

  defp input(opts \\ []),
    do: Map.merge(%{buttons: [:left], push: 0.5, gear: 2}, Map.new(opts))

  describe "a declaration" do
    test "has its module's name, and prints in one line" do
      assert inspect(Puck.__game__()) ==
               "#Sconce.Game<puck 3 · 10 fields · buttons(3) push(5) gear(3)>"

      assert Map.keys(%Puck.Frame{}) |> Enum.member?(:left_wall)
      assert %Puck.Frame{}.side == 1
      assert %Puck.Action{}.gear == nil

      assert Game.columns(Puck) ==
               ~w(x y speed ice under side rested left_wall right_wall rays[0] rays[1]) ++
                 ~w(buttons.left buttons.right buttons.brake push gear)
    end

    test "returns unchanged from the native side" do
      game = Puck.__game__()
      {:ok, policy} = Policy.init([embedding: {Puck, queue_depth: 3}], seed: 1)
      assert {^game, options} = policy.spec.embedding
      assert options[:queue_depth] == 3
      assert Spec.new(policy.spec) == Spec.new(embedding: {Puck, queue_depth: 3})
    end

    test "that contradicts itself is refused, and the contradiction named" do
      refused = fn fields, input ->
        assert_raise ArgumentError, fn -> Game.new!(name: :g, fields: fields, input: input) end
      end

      for {fields, input, said} <- [
            {[x: [type: {:range, 1, 1}]], [], "field x: expected a range"},
            {[x: [type: :number, mirror: :flip]], [], "field x: expected a range to flip"},
            {[x: [type: :flag, mirror: {:swap, :y}]], [],
             "field x: expected a field of the game to swap with, got y"},
            {[x: [type: {:id, 3}, mirror: [{0, 4}]]], [], "mirror of x: it has no 4"},
            {[x: [type: {:id, 3}, default: 3]], [], "field x (default): 3 is outside 0..2"},
            {[x: [type: :number, scale: 0]], [], "field x: expected a scale"},
            {[x: :flag], [x: [type: {:choice, 2}]], "x twice"},
            {[reward: :number], [], "reward twice"},
            {[x: :number], [b: [type: {:flags, [:a, :a]}]], "a twice"},
            {[x: :number], [a: [type: {:axis, 2, 1}]], "input part a: expected a range"},
            {[x: [type: {:id, 3}, width: 0]], [], "field x: option :width"},
            {[x: [type: :colour]], [], "field x: no type :colour"},
            {[x: [tpye: :flag]], [], "field x: unknown option :tpye, did you mean :type?"},
            {[], [], "fields of a game: 0 is outside"},
            {[Ж: :flag], [], "name of a field"}
          ] do
        assert Exception.message(refused.(fields, input)) =~ said
      end
    end
  end

  describe "a frame" do
    test "is embedded by its fields, ids by their tables" do
      {:ok, features} = Embedding.schema(Puck)
      names = for f <- features, do: {f.name, f.width}

      assert names == [
               {"x", 1},
               {"y", 1},
               {"speed", 1},
               {"side", 3},
               {"rested", 1},
               {"left_wall", 1},
               {"right_wall", 1},
               {"rays", 2},
               {"prev_buttons.left", 1},
               {"prev_buttons.right", 1},
               {"prev_buttons.brake", 1},
               {"prev_push", 1},
               {"prev_gear", 3},
               {"ice", 3},
               {"under", 3}
             ]

      {:ok, {continuous, ids}} = Embedding.embed(Puck, frame(previous_action: input()))
      assert ids == [2, 0]
      numbers = for <<x::float-32-little <- continuous>>, do: x
      assert numbers == [0.5, -0.5, 0.5, 0, 1, 0, 0, 0.5, -0.5, 0, 0] ++ [1, 0, 0, 0.5, 0, 0, 1]
      {:ok, {continuous, _ids}} = Embedding.embed(Puck, struct!(Puck.Frame, frame()))
      numbers = for <<x::float-32-little <- continuous>>, do: x
      assert Enum.drop(numbers, 11) == List.duplicate(0.0, 7)
    end

    test "in the packed layout has ids as numbers, and a width that is a multiple of eight" do
      {:ok, {continuous, ids}} = Embedding.embed({Puck, layout: :packed}, frame())
      assert {byte_size(continuous), ids} == {4 * 24, []}
      assert [2.0, 0.0] == for(<<x::float-32-little <- binary_part(continuous, 12, 8)>>, do: x)
    end

    test "with a wrong value is an error that names the field" do
      for {bad, said} <- [
            {frame(ice: 4), "ice: 4 is outside 0..3"},
            {frame(x: 1.5), "x: 1.5 is outside -1..1"},
            {frame(rested: 0.5), "rested: expected a whole number of 0..1"},
            {Map.delete(frame(), :speed), "speed not found"},
            {frame(rays: [1]), "rays: expected 2 numbers"},
            {frame(speed: "fast"), "speed: expected a number"},
            {frame(previous_action: input(gear: 3)), "prev_gear: 3 is outside 0..2"},
            {frame(previous_action: input(push: -2)), "prev_push: -2 is outside -1..1"},
            {frame(previous_action: input(buttons: [:jump])),
             "previous_action.buttons: expected its buttons"},
            {frame(previous_action: %{buttons: []}), "previous_action.gear not found"},
            {<<1, 2>>, "frame: expected"}
          ] do
        assert {:error, %Error{} = error} = Embedding.embed(Puck, bad)
        assert Exception.message(error) =~ said
      end
    end
  end

  describe "files of games" do
    @describetag :tmp_dir

    @header "speed,x,y,ice,under,left_wall,right_wall,buttons.left,buttons.right,buttons.brake,push,gear,note"

    defp csv(rows), do: Enum.join([@header | rows], "\n") <> "\n"

    defp row(x, gear), do: "1.5,#{x},0.5,1,2,0.5,1.5,1,0,true,-0.5,#{gear},hm"

    test "become a corpus with the same rows", %{tmp_dir: dir} do
      File.write!(Path.join(dir, "a.csv"), csv([row(0.1, 0), row(0.2, 1), row(0.3, 2)]))

      lines =
        for gear <- [2, 1] do
          ~s({"x":-0.5,"y":0,"speed":3,"ice":0,"under":3,"left_wall":0,"right_wall":2,"rays":[7,8],) <>
            ~s("rested":true,"buttons":["brake"],"push":1,"gear":#{gear}})
        end

      File.write!(Path.join(dir, "b.jsonl"), Enum.join(lines, "\n"))
      into = Path.join(dir, "corpus")
      assert {:ok, corpus} = Corpus.import(dir, game: Puck, into: into)
      assert %{added: 2, frames: 5, skipped: []} = corpus.report
      assert corpus.info.schema == Puck.__game__()
      assert inspect(corpus) =~ "puck 3 · 2 games · 5 frames"
      assert {:ok, again} = Corpus.import(dir, game: Puck, into: into)
      assert %{added: 0, known: 2} = again.report
      {:ok, games} = Corpus.games(corpus)
      a = Enum.find_index(games, &(&1.source == "a.csv"))
      {:ok, [{first, labels}, {second, _}, _]} = Corpus.recording(corpus, a)
      assert labels == [1, 0, 1, 1, 0]
      numbers = fn row -> for(<<x::float-32-little <- row>>, do: Float.round(x, 3)) end
      fields = [0.1, 0.5, 1.5, 1.0, 2.0, 1.0, 0.0, 0.5, 1.5, 0.0, 0.0]
      assert numbers.(first) == fields ++ List.duplicate(0.0, 6)
      assert Enum.drop(numbers.(second), 11) == [1.0, 1.0, 0.0, 1.0, -0.5, 0.0]
      {:ok, [{row, [0, 0, 1, 4, 2]}, _]} = Corpus.recording(corpus, 1 - a)
      assert Enum.slice(numbers.(row), 6, 5) == [1.0, 0.0, 2.0, 7.0, 8.0]
      assert {:ok, %{games: 2}} = Corpus.verify(into, progress: false)
    end

    test "with an error are skipped whole, and the place of the error named", %{tmp_dir: dir} do
      utf16 = :unicode.characters_to_binary(csv([row(0.1, 0)]), :utf8, {:utf16, :little})

      wrong = %{
        "range.csv" =>
          {csv([row(0.1, 0), row(1.1, 0)]), "line 3, column x: 1.1 is outside -1..1"},
        "text.csv" => {csv([row("fast", 0)]), ~s(line 2, column x: "fast" is not a number)},
        "nan.csv" => {csv([row("NaN", 0)]), "line 2, column x is not finite (NaN)"},
        "empty.csv" => {csv([row("", 0)]), "line 2, column x: empty"},
        "label.csv" =>
          {csv([row(0.1, 0), row(0.1, 3)]), "line 3, column gear: 3 is outside 0..2"},
        "cells.csv" => {csv([row(0.1, 0), "1,2"]), "line 3: 2 cells of 13"},
        "column.csv" => {"x,y\n0,0\n", "line 1: no column speed; it has x, y"},
        "twice.csv" => {"x,x\n0,0\n", "line 1: column x occurs twice"},
        "rows.csv" => {csv([]), "0 frames of at least 1"},
        "latin.csv" => {csv([row("0.1\xE9", 0)]), "line 2, column x: not UTF-8"},
        "utf16.csv" => {<<0xFF, 0xFE>> <> utf16, "line 1: UTF-16, not UTF-8"},
        "line.csv" => {String.duplicate("7", 3_000_000), "line 1: more than 1048576 bytes"},
        "key.jsonl" => {~s({"x":0}\n), "line 1, column y: missing"},
        "json.jsonl" => {~s({"x":0\n), "line 1: EOF while parsing"},
        "list.jsonl" => {"[1]\n", "line 1: invalid type"}
      }

      for {name, {text, _said}} <- wrong, do: File.write!(Path.join(dir, name), text)
      File.write!(Path.join(dir, "good.csv"), csv([row(0.1, 0)]))
      {:ok, corpus} = Corpus.import(dir, game: Puck, into: Path.join(dir, "corpus"))
      assert corpus.report.added == 1
      said = Map.new(corpus.report.skipped, &{Path.basename(&1.file), &1.detail})
      assert map_size(said) == map_size(wrong)

      for {name, {_text, expected}} <- wrong,
          do: assert(said[name] =~ expected, "#{name}: #{said[name]}")
    end

    test "of another version or game do not mix", %{tmp_dir: dir} do
      into = Path.join(dir, "corpus")
      File.write!(Path.join(dir, "a.csv"), csv([row(0.1, 0)]))
      {:ok, _corpus} = Corpus.import(dir, game: Puck, into: into)
      other = %{Puck.__game__() | version: 4}
      assert {:error, %Error{kind: :mismatch}} = Corpus.import(dir, game: other, into: into)

      assert {:error, error} =
               train(into, embedding: other, backbone: :mlp, out: Path.join(dir, "run"))

      assert Exception.message(error) =~ "expected version 4 of puck, got version 3 of puck"
    end
  end

  describe "games as streams" do
    @describetag :tmp_dir

    test "are written as they come", %{tmp_dir: dir} do
      games =
        Stream.map(1..3, fn i ->
          Stream.map(1..i, &%{frame: frame(x: &1 / 10), input: input(), reward: 1})
        end)

      {:ok, corpus} = Corpus.build(Puck, games, into: dir <> "/c", columns: [:reward])
      assert %{games: 3, frames: 6} = corpus.info

      {:ok, corpus} =
        Corpus.build(Puck, [[%{frame: frame(), input: input(), reward: 2}]],
          into: dir <> "/c",
          columns: [:reward]
        )

      assert %{games: 1, frames: 1} = corpus.info
    end

    test "that fail leave the old corpus", %{tmp_dir: dir} do
      into = dir <> "/c"
      good = [%{frame: frame(), input: input(), reward: 1, end: true}]
      opts = [into: into, columns: [:reward, :end]]
      {:ok, corpus} = Corpus.build(Puck, [good], opts)
      files = Path.wildcard(into <> "/**")

      for {rows, said} <- [
            {[%{frame: frame(), input: input(), reward: :nan}],
             "game 1, frame 0, reward is not finite"},
            {[%{frame: frame(), input: input()}], "game 1, frame 0, reward not found"},
            {[%{frame: frame(ice: 9), input: input(), reward: 0}],
             "game 1, frame 0, ice: 9 is outside 0..3"},
            {good ++ good, "expected an end in the last frame alone, got one in frame 0"},
            {[], "at least one frame"},
            {[1], "expected a map with frame and input"}
          ] do
        assert {:error, %Error{} = error} = Corpus.build(Puck, [good, rows], opts)
        assert Exception.message(error) =~ said
        assert Path.wildcard(into <> "/**") == files
      end

      assert_raise RuntimeError, fn ->
        Corpus.build(Puck, Stream.map([1], fn _ -> raise "gone" end), opts)
      end

      assert Path.wildcard(into <> "/**") == files
      assert {:ok, %{info: %{games: 1}}} = Corpus.open(into)
      assert corpus.info.games == 1
      refuted = dir <> "/never"
      assert {:error, _} = Corpus.build(Puck, [[1]], into: refuted)
      refute File.exists?(refuted)
    end
  end

  describe "a policy" do
    @describetag :tmp_dir

    # The player pushes towards the middle, and holds the gear that suits the ice.
    defp steered(seed, frames) do
      :rand.seed(:exsss, {seed, 2, 3})

      for _ <- 1..frames do
        x = :rand.uniform() * 2 - 1
        ice = :rand.uniform(4) - 1
        buttons = if x > 0, do: [:left], else: [:right]
        frame = frame(x: x, ice: ice, speed: x * 10, under: ice)

        %{
          frame: frame,
          input: %{buttons: buttons, push: if(x > 0, do: -1, else: 1), gear: rem(ice, 3)}
        }
      end
    end

    test "learns, is scored, saved and played", %{tmp_dir: dir} do
      {:ok, corpus} = Corpus.build(Puck, Stream.map(1..8, &steered(&1, 200)), into: dir <> "/c")

      {:ok, report} =
        train(corpus,
          embedding: {Puck, queue_depth: 3, num_delays: 2},
          backbone: :gru,
          hidden_size: 32,
          num_layers: 1,
          heads: :autoregressive,
          prior: true,
          mirror: 0.5,
          sampling: :transitions,
          scheduled_sampling: 0.2,
          window_size: 20,
          batch_size: 16,
          steps: 150,
          learning_rate: 0.01,
          seed: 1,
          out: dir <> "/run"
        )

      assert report.policy.nll < 0.5
      {:ok, policy} = Policy.load(dir <> "/run/best.safetensors")
      assert inspect(policy.spec) =~ "puck"
      {:ok, session} = Session.open(policy, deterministic: true)

      {:ok, action} =
        Session.act(session, struct!(Puck.Frame, frame(x: 0.9, speed: 9, ice: 2, under: 2)))

      assert %{buttons: %{left: true, right: false, brake: false}, push: -1.0, gear: 2} =
               action.input

      assert %Puck.Action{gear: 2, frame: 1} = Puck.action(action)

      {:ok, action} =
        Session.act(session, frame(x: -0.9, speed: -9, ice: 1, under: 1, previous_action: action))

      assert %{buttons: %{right: true, left: false}, push: 1.0, gear: 1} = action.input
      assert %Action{main_stick: nil} = action
      made = for i <- 1..30, do: Session.act(session, Game.Frame.made(Puck.__game__(), i))
      assert Enum.all?(made, &match?({:ok, _action}, &1))
    end

    test "does not learn from frames of weight zero", %{tmp_dir: dir} do
      # Every second frame has a wrong input and weight zero.
      games =
        for seed <- 1..6 do
          for {row, i} <- Enum.with_index(steered(seed, 100)) do
            if rem(i, 2) == 0, do: Map.put(row, :weight, 1), else: Map.merge(row, wrong(row))
          end
        end

      small = [backbone: :mlp, hidden_sizes: [16], window_size: 10, batch_size: 16, steps: 200]
      small = small ++ [learning_rate: 0.01, val_split: 0.0, loss: :plain, seed: 1]
      {:ok, corpus} = Corpus.build(Puck, games, into: dir <> "/c", columns: [:weight])
      {:ok, report} = train(corpus, small ++ [out: dir <> "/run"])
      {:ok, plain} = Corpus.build(Puck, games, into: dir <> "/plain")
      {:ok, all} = train(plain, small ++ [out: dir <> "/all"])
      loss = &List.last(&1.history).loss
      assert loss.(all) > 3 * loss.(report)
    end

    defp wrong(%{input: input} = row),
      do: %{weight: 0, input: %{input | gear: rem(row.input.gear + 1, 3), push: -input.push}}

    test "samples the values of a column equally often", %{tmp_dir: dir} do
      # One game on ice 3 and seven on ice 0; the ice determines the gear.
      game = fn ice ->
        for i <- 1..60, do: %{frame: frame(x: i / 100, ice: ice), input: input(gear: rem(ice, 2))}
      end

      {:ok, corpus} =
        Corpus.build(Puck, [game.(3) | List.duplicate(game.(0), 7)], into: dir <> "/c")

      opts = [window_size: 10, batch_size: 64, sampling: :balanced, seed: 2]

      gears = fn opts ->
        for batch <- Sconce.Loader.stream(corpus, opts ++ [as: :binaries]) |> Enum.take(8),
            <<_::binary-size(8), gear::16-little <- batch.actions.data>>,
            do: gear
      end

      gears = gears.(opts ++ [balance: :ice])
      assert_in_delta Enum.sum(gears) / length(gears), 0.5, 0.1

      assert {:error, error} =
               train(corpus, opts ++ [balance: "snow", backbone: :mlp, out: dir <> "/run"])

      assert Exception.message(error) =~ "column snow of a frame of puck not found"
      assert {:error, error} = train(corpus, opts ++ [backbone: :mlp, out: dir <> "/run"])
      assert Exception.message(error) =~ "without a column (balance)"
    end

    test "that starts from another's weights learns more from a few games", %{tmp_dir: dir} do
      opts = fn name ->
        [
          backbone: :gru,
          hidden_size: 32,
          num_layers: 1,
          window_size: 20,
          batch_size: 8,
          loss: :plain
        ] ++
          [learning_rate: 0.003, validation: dir <> "/measured", seed: 1, out: dir <> "/" <> name]
      end

      # The same play, except for the gear on ice 3.
      other = fn rows ->
        for row <- rows, do: if(row.frame.ice == 3, do: put_in(row.input.gear, 2), else: row)
      end

      {:ok, many} = Corpus.build(Puck, Stream.map(1..20, &steered(&1, 100)), into: dir <> "/many")

      {:ok, few} =
        Corpus.build(Puck, Stream.map(31..32, &other.(steered(&1, 100))), into: dir <> "/few")

      {:ok, _} =
        Corpus.build(Puck, Stream.map(41..44, &other.(steered(&1, 100))), into: dir <> "/measured")

      {:ok, _} = train(many, opts.("first") ++ [steps: 150])
      {:ok, anew} = train(few, opts.("anew") ++ [steps: 40])

      {:ok, tuned} =
        train(few, opts.("tuned") ++ [steps: 40, policy: dir <> "/first/last.safetensors"])

      assert tuned.policy.nll < anew.policy.nll - 0.3
    end
  end

  test "a packed row has all numbers of a previous action that is a vector" do
    game =
      Game.new!(
        name: :arm,
        fields: [x: [type: :number], at: [type: {:vector, 2}], on: [type: :flag]],
        input: [turn: [type: {:continuous, 3, -1, 1}], grip: [type: {:flags, [:open]}]]
      )

    frame = %{x: 0.5, at: [1.0, 2.0], on: true}
    {:ok, first} = Game.Frame.pack(game, frame)
    known = Map.put(frame, :previous_action, %{turn: [0.5, -0.5, 1.0], grip: %{open: true}})
    {:ok, row} = Game.Frame.pack(game, known)
    assert {byte_size(first), byte_size(row)} == {36, 36}
    assert Game.Frame.pack(game, row) == {:ok, row}
    assert Game.Frame.unpack(game, row) == {:ok, known}
    assert Game.Frame.unpack(game, first) == {:ok, Map.put(frame, :previous_action, nil)}
  end
end

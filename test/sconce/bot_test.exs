defmodule Sconce.BotTest do
  use ExUnit.Case, async: true
  doctest Sconce.Bot
  doctest Sconce.Bot.Bridge.Recording

  import ExUnit.CaptureLog

  alias Sconce.{Action, Bot, Embedding, Error, Game, Policy, Serving, Session}
  alias Sconce.Bot.Player
  alias Sconce.Compat.Melee
  alias Sconce.Test.MeleeStates

  @melee [embedding: {:melee, layout: :packed}, backbone: :gru, hidden_size: 16]

  defmodule Bridge do
    # A bridge to a test process: it forwards events and reports inputs. `script` may make it fail.
    @behaviour Sconce.Bot.Bridge

    def connect(opts) do
      send(opts[:test], {:connected, self()})
      if opts[:refuse], do: {:error, :refused}, else: {:ok, opts[:test]}
    end

    def next(test, timeout_ms) do
      receive do
        {:event, :raise} -> raise "a bridge broke"
        {:event, :exit} -> exit(:gone)
        {:event, event} -> {event, test}
      after
        timeout_ms -> {:none, test}
      end
    end

    def put(test, input) do
      send(test, {:put, input})

      if is_struct(input, Action) and input.choices[:refuse],
        do: {:error, :full},
        else: {:ok, test}
    end

    def disconnect(test) do
      send(test, :disconnected)
      :ok
    end
  end

  defp policy(spec \\ @melee) do
    {:ok, policy} = Policy.init(spec, seed: 1)
    policy
  end

  defp bot(opts) do
    opts = Keyword.put_new_lazy(opts, :policy, &policy/0)

    start_supervised!({Bot, Keyword.merge([session: [seed: 7], deadline_ms: 10_000], opts)},
      id: make_ref()
    )
  end

  # The answers of a session that sees the same frames, from the first one with a decision on.
  defp reference(policy, states, opts \\ []) do
    {:ok, session} = Session.open(policy, [seed: 7] ++ opts)

    for state <- states, state.frame >= -40 do
      {:ok, frame} = Melee.frame(state, 1)
      {:ok, action} = Session.act(session, frame)
      action
    end
  end

  defp inputs(actions), do: for(action <- actions, do: action.choices)

  defp play(bot, states) do
    for state <- states do
      {:ok, action} = Bot.step(bot, state)
      action
    end
  end

  defp ended(bot) do
    :ok = Bot.over(bot)
    bot |> Bot.games() |> List.last()
  end

  defp consistent(game) do
    sum =
      game.decisions + game.late + game.errors + game.repeated + game.out_of_order +
        game.rollbacks

    assert game.frames == sum
    game
  end

  describe "one decision a frame" do
    test "answers are those of a session that sees the same frames" do
      policy = policy()
      states = MeleeStates.game(200)
      bot = bot(policy: policy)
      answers = play(bot, states)
      {countdown, decided} = Enum.split(answers, 83)

      assert Enum.uniq(for action <- countdown, do: Map.take(action, [:buttons, :main_stick])) ==
               [Map.take(Melee.neutral(), [:buttons, :main_stick])]

      assert inputs(decided) == inputs(reference(policy, states))
      game = consistent(ended(bot))
      assert {game.frames, game.decisions, game.late, game.ended} == {117, 117, 0, :finished}
    end

    test "a frame that comes twice is answered by the same input and decided once" do
      policy = policy()
      states = MeleeStates.game(140)
      bot = bot(policy: policy)
      twice = for state <- states, _ <- 1..2, do: state
      answers = play(bot, twice)
      for [first, second] <- Enum.chunk_every(answers, 2), do: assert(first == second)
      decided = answers |> Enum.take_every(2) |> Enum.drop(83)
      assert inputs(decided) == inputs(reference(policy, states))
      game = consistent(ended(bot))
      assert {game.decisions, game.repeated} == {57, 57}
    end

    test "skipped frames are counted, and frames that come after all are answered by the newest input" do
      policy = policy()
      states = MeleeStates.game(160, inputs: fn _number -> nil end)
      {before, [a, b, c, d, e | rest]} = Enum.split(states, 120)
      bot = bot(policy: policy)
      play(bot, before)
      # d and e come before b and c; a is never seen.
      [_of_d, of_e, of_c, of_b] = play(bot, [d, e, c, b])
      assert of_c == of_e and of_b == of_e
      after_it = play(bot, rest)

      assert length(after_it) == length(rest)
      game = consistent(ended(bot))
      assert {game.skipped, game.out_of_order} == {1, 2}
      assert a.frame == -3
    end

    test "the memory after reordered and repeated frames is that of the frames in order" do
      policy = policy()
      states = MeleeStates.game(160, inputs: fn _number -> nil end)
      {before, [a, b, c | rest]} = Enum.split(states, 130)
      plain = bot(policy: policy, session: [deterministic: true])
      shaken = bot(policy: policy, session: [deterministic: true])
      play(plain, before)
      play(shaken, before)

      # In the shaken game b comes before a, so no decision is made for a. Its input stays that of the frame before.
      # c is repeated with other contents, and then as it was.
      other = put_in(c.players[1].percent, 99.0)
      play(shaken, [b, a, c, other, c])
      play(plain, [a, b, c])
      game = consistent(ended(shaken) |> Map.put(:rows, []))
      assert {game.out_of_order, game.rollbacks, game.skipped} == {1, 2, 0}

      # Both memories have the same frames, but a's choice differs; a policy without memory of its inputs decides alike.
      blind = [
        embedding: {:melee, layout: :packed, previous_action: false},
        backbone: :gru,
        hidden_size: 16
      ]

      {:ok, policy} = Policy.init(blind, seed: 3)
      plain = bot(policy: policy, session: [deterministic: true])
      shaken = bot(policy: policy, session: [deterministic: true])
      play(plain, before)
      play(shaken, before)
      play(shaken, [b, a, c, other, c])
      play(plain, [a, b, c])
      assert inputs(play(shaken, rest)) == inputs(play(plain, rest))
    end

    test "a frame that comes again is put in its place before the next one, after its answer" do
      bot = bot([])
      states = MeleeStates.game(100)
      play(bot, states)
      other = put_in(List.last(states).players[1].percent, 99.0)
      assert {:ok, _same} = Bot.step(bot, other)
      turn = :sys.get_state(bot).turn
      refute Sconce.Bot.Turn.behind?(turn)
      assert turn.game.rollbacks == 1
      assert {99.0, _opponent} = turn.game.percent
    end

    test "corrections that wait together leave the memory that one at a time leaves" do
      policy = policy()
      states = MeleeStates.game(150, inputs: fn _number -> nil end)
      states = Enum.filter(states, &(&1.frame >= -40))

      frames =
        for state <- states do
          {:ok, frame} = Melee.frame(state, 1)
          {:ok, row} = Embedding.pack(policy.spec.embedding, frame)
          {state.frame, Sconce.Bot.Row.numbered(row, state.frame)}
        end

      {[one, two | _] = played, [last | _]} = Enum.split(frames, 20)
      {first, _row} = one

      # The fifth frame comes after the others, and three frames again with the contents of the second.
      {late, _row} = Enum.at(played, 4)

      corrections =
        [{late, elem(Enum.at(played, 4), 1)}] ++
          for i <- [7, 9, 12], do: {first + i, elem(two, 1)}

      decisions =
        for together? <- [true, false] do
          {:ok, session} = Session.open(policy, seed: 7, rollback: 32)
          player = Player.new(session, rollback: 32)

          player =
            for {number, row} <- played, number != late, reduce: player do
              player ->
                {:ok, _sent, player} = Player.decide(player, number, row, [])
                player
            end

          player =
            for {number, row} <- corrections, reduce: player do
              player ->
                noted = Player.note(player, number, row)
                assert Player.place(noted, number, row) == :same
                if together?, do: noted, else: elem(Player.correct(noted), 1)
            end

          player = if together?, do: elem(Player.correct(player), 1), else: player
          assert {Player.oldest_noted(player), player.gaps} == {nil, []}
          {number, row} = last
          {:ok, {_choices, action}, player} = Player.decide(player, number, row, logits: true)

          {action.logits,
           for({at, _before, row, {choices, _}} <- player.past, do: {at, row, choices})}
        end

      assert [same, same] = decisions
      assert length(elem(same, 1)) == 21
    end

    test "without rollback a frame with other contents is answered by the input that went out" do
      bot = bot(rollback: 0)
      states = MeleeStates.game(100)
      last = play(bot, states) |> List.last()
      other = put_in(List.last(states).players[1].percent, 99.0)
      assert {:ok, ^last} = Bot.step(bot, other)
      game = consistent(ended(bot))
      assert game.out_of_order + game.repeated == 1
    end

    test "games that end and begin empty the memory" do
      policy = policy()
      states = MeleeStates.game(140)
      bot = bot(policy: policy)
      first = play(bot, states)
      assert Bot.step(bot, MeleeStates.menu()) == :none
      assert play(bot, states) == first
      # The second game ends without a menu: frame numbers begin anew.
      assert play(bot, states) == first
      # A connection that came back in the midst of another game.
      middle = Enum.drop(states, 100)
      play(bot, states ++ Enum.drop(MeleeStates.game(400), 300))
      play(bot, middle)
      :ok = Bot.over(bot)
      games = Bot.games(bot)
      assert Enum.map(games, & &1.number) == [1, 2, 3, 4, 5]

      assert Enum.map(games, & &1.ended) == [
               :finished,
               :restarted,
               :restarted,
               :restarted,
               :finished
             ]

      Enum.each(games, &consistent/1)
      assert List.last(games).frames == length(middle) - 2
    end

    test "a choice is held for frames that the memory sees" do
      policy = policy()
      states = MeleeStates.game(140, inputs: fn _number -> nil end)
      bot = bot(policy: policy, action_repeat: 3)
      decided = bot |> play(states) |> Enum.drop(83)

      for held <- Enum.chunk_every(decided, 3, 3, :discard),
          do: assert(held |> Enum.uniq() |> length() == 1)

      {:ok, session} = Session.open(policy, seed: 7)

      expected =
        states
        |> Enum.filter(&(&1.frame >= -40))
        |> Enum.with_index()
        |> Enum.map_reduce(nil, fn {state, i}, held ->
          {:ok, frame} = Melee.frame(state, 1)
          opts = if rem(i, 3) == 0, do: [], else: [choices: held]
          {:ok, action} = Session.act(session, frame, opts)
          {action.choices, action.choices}
        end)
        |> elem(0)

      assert inputs(decided) == expected
    end
  end

  describe "late" do
    test "a frame is answered before the bot takes what it says" do
      {:ok, turn} = Sconce.Bot.Turn.open(options(policy()))
      states = MeleeStates.game(100, inputs: fn _number -> nil end)

      turn =
        Enum.reduce(states, turn, fn state, turn ->
          came = System.monotonic_time()
          elem(Sconce.Bot.Turn.event(turn, {:frame, state}, came), 1)
        end)

      number = List.last(states).frame
      assert {^number, _row} = turn.unseen
      refute is_map_key(turn.log, number)
      seen = Sconce.Bot.Turn.seen(turn)
      assert seen.unseen == nil
      assert is_map_key(seen.log, number)
      # The end of a game takes its last frame.
      ends = &Sconce.Bot.Turn.over(&1, :finished).games
      assert ends.(turn) == ends.(seen)
    end

    test "frames that were late enter the memory with the neutral choices" do
      policy = policy()
      states = MeleeStates.game(100, inputs: fn _number -> nil end)
      {:ok, turn} = Sconce.Bot.Turn.open(options(policy))
      now = System.monotonic_time()
      long_ago = now - System.convert_time_unit(60, :second, :native)

      {answers, _turn} =
        Enum.map_reduce(states, turn, fn state, turn ->
          # Three frames come a minute late.
          came = if state.frame in -30..-28, do: long_ago, else: System.monotonic_time()
          {{:input, action}, turn} = Sconce.Bot.Turn.event(turn, {:frame, state}, came)
          {action, turn}
        end)

      {:ok, session} = Session.open(policy, seed: 7, rollback: 8)
      neutral = Player.neutral(policy.spec)

      for {state, answer} <- Enum.zip(states, answers), state.frame >= -40 do
        {:ok, frame} = Melee.frame(state, 1)
        late? = state.frame in -30..-28
        opts = if late?, do: [choices: neutral], else: []
        {:ok, action} = Session.act(session, frame, [game_frame: state.frame] ++ opts)
        assert answer.choices == action.choices
      end
    end

    test "a decision that is taken back leaves a memory without it, also after many late frames" do
      policy = policy()
      {:ok, session} = Session.open(policy, seed: 7, rollback: 8)
      player = Player.new(session, rollback: 8)
      neutral = Player.neutral(policy.spec)

      rows =
        for state <- MeleeStates.game(110), state.frame >= -40 do
          {:ok, frame} = Melee.frame(state, 1)
          {:ok, row} = Embedding.pack(policy.spec.embedding, %{frame | previous_action: nil})
          {state.frame, row}
        end

      {[{first, row} | late], [{taken, taken_row}, {last, last_row} | _]} = Enum.split(rows, 13)
      {:ok, _sent, player} = Player.decide(player, first, row, [])

      player =
        for {number, row} <- late,
            reduce: player,
            do: (player -> elem(Player.late(player, number, row), 1))

      assert length(player.owed) == 12
      {:ok, _sent, made} = Player.decide(player, taken, taken_row, [])
      assert made.owed == []
      {_sent, player} = Player.take_back(player, made, taken, taken_row)

      assert {:ok, {_choices, action}, _player} =
               Player.decide(player, last, last_row, deterministic: true, logits: true)

      {:ok, reference} = Session.open(policy, seed: 7)
      {:ok, _action} = Session.act(reference, row)

      for {_number, row} <- late ++ [{taken, taken_row}],
          do: {:ok, _} = Session.act(reference, row, choices: neutral)

      {:ok, expected} = Session.act(reference, last_row, deterministic: true, logits: true)
      assert action.logits == expected.logits
    end

    test "frames that the policy refuses leave the memory after one error" do
      policy = policy()
      {:ok, session} = Session.open(policy, seed: 7)
      player = Player.new(session, rollback: 8)
      {:ok, frame} = Melee.frame(MeleeStates.state(0), 1)
      {:ok, row} = Embedding.pack(policy.spec.embedding, frame)
      {:ok, beyond} = Embedding.pack(policy.spec.embedding, put_in(frame.own.action, 5000))
      {_sent, player} = Player.late(player, 0, beyond)
      assert {:error, %Error{kind: :out_of_range}, player} = Player.decide(player, 1, row, [])
      assert player.owed == []
      assert {:ok, _sent, _player} = Player.decide(player, 1, row, [])
    end

    test "a policy without a neutral input sends nothing for a late frame" do
      spec = [embedding: {:vector, 1}, backbone: :mlp, heads: [go: {:bernoulli, 1}]]
      {:ok, turn} = Sconce.Bot.Turn.open(options(policy(spec)))
      long_ago = System.monotonic_time() - System.convert_time_unit(60, :second, :native)
      assert {:none, turn} = Sconce.Bot.Turn.event(turn, {:frame, {0, [0.5]}}, long_ago)
      assert turn.game.late == 1

      {:ok, turn} = Sconce.Bot.Turn.open(options(policy(spec), neutral: %{go: [0]}))

      assert {{:input, action}, _turn} =
               Sconce.Bot.Turn.event(turn, {:frame, {0, [0.5]}}, long_ago)

      assert action.choices == %{go: [0]}
    end

    defp options(policy, opts \\ []) do
      given = Keyword.merge([policy: policy, session: [seed: 7], deadline_ms: 10_000], opts)
      Sconce.Options.validate!(given, Sconce.Bot.Catalogue.schema(:start))
    end
  end

  describe "a jump button" do
    test "is not pressed anew in the air while the cooldown runs" do
      # The policy presses X and Y at random.
      policy = policy(@melee)
      states = MeleeStates.game(3000)
      free = bot(policy: policy, session: [seed: 5, temperature: 3.0])
      held = bot(policy: policy, session: [seed: 5, temperature: 3.0], jump_debounce: 600)

      presses = fn bot ->
        answers = play(bot, states)

        for {{before, now}, state} <- Enum.zip(Enum.zip(answers, tl(answers)), tl(states)),
            state.frame > 200,
            not state.players[1].on_ground,
            button <- [:x, :y],
            now.buttons[button] and not before.buttons[button],
            do: state.frame
      end

      assert presses.(free) != []
      # The cooldown never ends, because each jump begins it anew.
      assert presses.(held) == []
    end
  end

  describe "corrections" do
    test "keep held choices and the cooldown of jumps" do
      policy = policy()
      states = MeleeStates.game(160, inputs: fn _number -> nil end)
      opts = [policy: policy, action_repeat: 4, jump_debounce: 600]
      plain = bot(opts)
      shaken = bot(opts)
      {before, [a, b | rest]} = Enum.split(states, 131)
      assert play(plain, before) == play(shaken, before)
      [of_a, of_b] = play(plain, [a, b])
      # Both frames come again with other contents, and then as they were.
      other = fn state -> put_in(state.players[2].percent, 77.0) end
      assert [of_a, of_b] == play(shaken, [a, b])
      assert Enum.uniq(play(shaken, [other.(a), other.(b), a, b])) == [of_b]
      assert inputs(play(plain, rest)) == inputs(play(shaken, rest))
    end

    test "are in the report, the score and the recorded frames" do
      test = self()
      states = MeleeStates.game(200)
      {before, [a, b, c | rest]} = Enum.split(states, 150)
      other = put_in(b.players[1].percent, 50.0)

      games =
        for shaken <- [before ++ [a, b, c | rest], before ++ [a, c, b, other, c, b, c | rest]] do
          bot = bot(record: true, on_game: &send(test, {:game, &1}))
          play(bot, shaken)
          ended(bot)
          assert_receive {:game, game}
          game
        end

      [plain, shaken] = games
      assert {shaken.rollbacks, shaken.out_of_order, shaken.repeated} == {2, 1, 2}
      assert shaken.report == plain.report
      assert shaken.rows == plain.rows
      assert shaken.percent == plain.percent
    end
  end

  describe "frames that cannot be read" do
    test "at the begin of a game leave it its report, and are not skipped ones" do
      bot = bot([])
      [state | rest] = MeleeStates.game(150) |> Enum.drop(83)
      assert {:ok, _neutral} = Bot.step(bot, %{state | players: %{}})
      {first, [bad | later]} = Enum.split(rest, 20)
      play(bot, first)
      assert {:ok, _neutral} = Bot.step(bot, put_in(bad.players[2].percent, nil))
      play(bot, later)
      game = consistent(ended(bot))
      assert {game.errors, game.skipped} == {2, 0}
      assert game.report.frames == 66
    end

    test "as packed rows with numbers that are not finite are refused by name" do
      bot = bot([])
      {:ok, frame} = Melee.frame(MeleeStates.state(0), 1)
      {:ok, row} = Embedding.pack(policy().spec.embedding, frame)
      assert {:ok, _action} = Bot.step(bot, {0, row})

      for {bits, at} <- [{0x7FC00000, 0}, {0xFF800000, 8}, {0x7F800001, byte_size(row) - 4}] do
        <<before::binary-size(at), _::32, rest::binary>> = row

        assert {:ok, neutral} =
                 Bot.step(bot, {1, <<before::binary, bits::32-little, rest::binary>>})

        assert neutral.confidence == nil
      end

      assert {:ok, %{confidence: %{}}} = Bot.step(bot, {1, row})
      {:ok, info} = Bot.info(bot)

      assert {info.game.errors, Exception.message(info.game.error)} ==
               {3, "frame: frame is not finite (a packed number)"}
    end

    test "frames without a number of their own have the given one in reports" do
      bot = bot([])
      {:ok, frame} = Melee.frame(MeleeStates.state(0), 1)
      for number <- 5..24, do: {:ok, _} = Bot.step(bot, {number, %{frame | frame: 0}})
      assert %{frames: 20, first: 5, last: 24} = ended(bot).report
    end

    test "are answered by the neutral input and named in the figures" do
      bot = bot([])
      [state | _] = states = MeleeStates.game(100)
      assert {:ok, action} = Bot.step(bot, %{state | players: %{2 => state.players[2]}})
      assert action.main_stick == %{x: 0.5, y: 0.5}
      {:ok, info} = Bot.info(bot)
      assert %Error{kind: :not_found} = info.game.error
      assert Exception.message(info.game.error) =~ "player at port 1 (the game has ports 2)"

      # The game goes on as if it had begun with the first readable frame.
      assert play(bot, states) |> Enum.drop(83) |> inputs() == inputs(reference(policy(), states))
      bad = put_in(List.last(states).players[1].percent, :nan)
      assert {:ok, neutral} = Bot.step(bot, %{bad | frame: bad.frame + 1})
      assert neutral.choices == Player.neutral(policy().spec)

      for odd <- [nil, 1, "frame", [], %{}, {:a, :b}, %{frame: nil}, {0, nil}],
          do: Bot.step(bot, odd)

      game = consistent(ended(bot))
      assert game.errors == 10
    end
  end

  describe "malformed game states" do
    test "are answered by the neutral input, and the figures name the error" do
      bot = bot([])
      for state <- MeleeStates.game(130), do: {:ok, _action} = Bot.step(bot, state)

      without =
        for state <- [MeleeStates.full(7), MeleeStates.exphil(MeleeStates.full(7))],
            do: {Map.delete(state, :menu_state), ":menu_state"}

      states = MeleeStates.malformed(7) ++ without

      for {{state, text}, errors} <- Enum.with_index(states, 1) do
        {:ok, action} = Bot.step(bot, state)

        assert {action.main_stick, action.buttons} ==
                 {Melee.neutral().main_stick, Melee.neutral().buttons}

        {:ok, %{game: game}} = Bot.info(bot)
        assert {text, game.errors} == {text, errors}
        assert Exception.message(game.error) =~ text
      end

      {:ok, action} = Bot.step(bot, MeleeStates.state(7))
      assert action.choices != %{}
      game = consistent(ended(bot))
      assert game.decisions == 48
    end

    test "with an odd term in any place do not end a bot" do
      bot = bot([])
      full = MeleeStates.full(7)

      odd = [
        nil,
        [1 | 2],
        %{},
        {:a, 1},
        5,
        -1,
        "x",
        make_ref(),
        2 ** 2000,
        ~D[2026-01-01],
        :an_atom
      ]

      log =
        capture_log(fn ->
          for state <- [full, MeleeStates.exphil(full)], state <- MeleeStates.odd(state, odd) do
            answer = Bot.step(bot, state)
            assert answer == :none or match?({:ok, %Action{}}, answer)
          end
        end)

      refute log =~ "could not answer"
    end
  end

  describe "figures of a game" do
    test "have latencies, a result and the packed frames" do
      test = self()
      bot = bot(record: true, on_game: &send(test, {:game, &1}))
      states = MeleeStates.game(300)
      play(bot, states)
      game = ended(bot)
      assert game.latency_us.median > 0 and game.latency_us.max >= game.latency_us.p99 * 0.9
      assert {game.result, game.stocks} == {:draw, {4, 4}}
      assert game.rows == []
      assert_receive {:game, told}
      assert length(told.rows) == 217
      {:ok, frame} = Melee.frame(List.last(states), 1)
      assert {:ok, List.last(told.rows)} == Embedding.pack(policy().spec.embedding, frame)
      assert inspect(told) =~ "#Sconce.Bot.Game<game 1 · 217 frames · 0 late"
    end

    test "have rows with the inputs that led to them, where the game does not report inputs" do
      test = self()

      for {delay, lag} <- [{nil, 0}, {3, 3}] do
        bot = bot(record: true, on_game: &send(test, {:game, &1}), frame_delay: delay)
        states = MeleeStates.game(200, inputs: fn _number -> nil end)
        decided = bot |> play(states) |> Enum.drop(83)
        ended(bot)
        assert_receive {:game, told}

        for {{row, state}, i} <- told.rows |> Enum.zip(Enum.drop(states, 83)) |> Enum.with_index() do
          previous = if i > lag, do: Enum.at(decided, i - 1 - lag)
          {:ok, frame} = Melee.frame(state, 1)
          assert {:ok, row} == Sconce.Frame.pack(%{frame | previous_action: previous})
        end
      end
    end
  end

  describe "reports" do
    @describetag :tmp_dir

    test "of a played game equal those of the same game in a corpus", %{tmp_dir: dir} do
      :ok = Sconce.Native.corpus_fixtures(Path.join(dir, "replays"))
      replay = Path.join(dir, "replays") |> Path.join("valid*.slp") |> Path.wildcard() |> hd()

      {:ok, corpus} =
        Sconce.Corpus.import(replay,
          into: Path.join(dir, "corpus"),
          min_frames: 1,
          progress: false
        )

      same(corpus, 0)
    end

    if replays = System.get_env("SCONCE_REPLAYS") do
      @tag timeout: 300_000
      test "of real games equal those of their corpus", %{tmp_dir: dir} do
        {:ok, corpus} =
          Sconce.Corpus.import(Path.join(unquote(replays), "validation"),
            into: Path.join(dir, "corpus"),
            progress: false
          )

        {:ok, games} = Sconce.Corpus.games(corpus)
        for {_game, i} <- Enum.with_index(games), do: same(corpus, i)
      end
    end

    # Plays the states of the game's player 0, which come by number as a bridge of libmelee_ex brings them.
    defp same(corpus, index) do
      {:ok, recording} = Sconce.Corpus.recording(corpus, index, 0)
      bot = bot([])
      states = MeleeStates.of_recording(recording)
      play(bot, states ++ [last(corpus, index, List.last(states))])
      report = ended(bot).report
      {:ok, expected} = Sconce.Report.of_corpus(corpus, index)
      assert unnamed(report) == unnamed(expected)
    end
  end

  # The state after the last frame, which a recording lacks.
  defp last(corpus, index, before) do
    {:ok, moments} = Sconce.Report.Reading.moments(corpus, index, 0)
    {frame, _stage, {own, opponent}} = List.last(moments)
    players = %{1 => as(before.players[1], own), 2 => as(before.players[2], opponent)}
    %{before | frame: frame, players: players}
  end

  defp as(player, {percent, action, age, stock, character}) do
    now = %{
      percent: percent,
      action: action,
      action_frame: age,
      stock: stock,
      character: character
    }

    Map.merge(player, now)
  end

  # The figures of a report without the names of its players, which a corpus has from the replay.
  defp unnamed(report) do
    players = for player <- report.players, do: %{player | name: "one"}
    %{report | players: players, title: nil}
  end

  describe "a bridge" do
    defp bridged(opts \\ []) do
      {own, opts} = Keyword.split(opts, [:refuse])
      bot([bridge: {Bridge, [test: self()] ++ own}, reconnect_ms: 1] ++ opts)
    end

    # The process of the bridge tells its name.
    defp event(_bot, event) do
      reader = Process.get(:reader) || connected()
      send(reader, {:event, event})
    end

    defp connected do
      assert_receive {:connected, reader}, 5_000
      Process.put(:reader, reader)
      reader
    end

    test "brings frames and takes inputs, one for each frame" do
      bot = bridged()
      states = MeleeStates.game(120)
      for state <- states, do: event(bot, {:frame, state})
      inputs = for _ <- states, do: assert_receive({:put, %Action{} = input}, 5_000) && input
      assert inputs |> Enum.drop(83) |> inputs() == inputs(reference(policy(), states))
      event(bot, {:over, :time})

      assert {:ok, %{phase: :idle}} =
               eventually(fn -> Bot.info(bot) end, &match?({:ok, %{game: nil}}, &1))

      assert [%{ended: :time, decisions: 37}] = Bot.games(bot)
      assert {:error, %Error{kind: :mismatch}} = Bot.step(bot, hd(states))
    end

    defp eventually(fun, enough, tries \\ 500) do
      value = fun.()

      cond do
        enough.(value) ->
          value

        tries == 0 ->
          flunk("not reached: #{inspect(value)}")

        true ->
          Process.sleep(10)
          eventually(fun, enough, tries - 1)
      end
    end

    test "that closes, raises, exits or answers nonsense ends the game, and is connected again" do
      bot = bridged(reconnect: 100)
      connected()
      [state | _] = MeleeStates.game(90) |> Enum.drop(85)

      for {how, i} <- Enum.with_index([{:closed, :cut}, :raise, :exit, :nonsense], 1) do
        event(bot, {:frame, state})
        assert_receive {:put, %Action{}}
        event(bot, how)
        assert_receive :disconnected
        connected()
        games = Bot.games(bot)
        assert length(games) == i
        assert {:closed, _reason} = List.last(games).ended
      end

      {:ok, info} = Bot.info(bot)
      assert Exception.message(info.error) =~ "bad_return"
    end

    test "that cannot be connected stops the bot after its attempts" do
      Process.flag(:trap_exit, true)

      {:ok, bot} =
        Bot.start_link(
          policy: policy(),
          bridge: {Bridge, test: self(), refuse: true},
          reconnect: 2,
          reconnect_ms: 1
        )

      assert_receive {:EXIT, ^bot, %Error{kind: :unavailable}}, 5_000
      for _ <- 1..3, do: assert_received({:connected, _reader})
      refute_received {:connected, _reader}
    end

    test "gets the neutral input when the bot stops, and the app the game" do
      test = self()
      bot = bridged(on_game: &send(test, {:game, &1}))
      [state | _] = MeleeStates.game(90) |> Enum.drop(85)
      event(bot, {:frame, state})
      assert_receive {:put, %Action{}}
      GenServer.stop(bot)
      assert_receive {:put, %Action{confidence: nil, main_stick: %{x: 0.5, y: 0.5}}}
      assert_receive :disconnected
      assert_receive {:game, %{ended: :stopped, decisions: 1}}
    end
  end

  describe "menus" do
    test "are driven by a function that keeps a value" do
      menu = fn _state, count -> {"press #{count || 0}", (count || 0) + 1} end
      bot = bot(menu: menu)
      assert Bot.step(bot, MeleeStates.menu()) == {:menu, "press 0"}
      assert Bot.step(bot, MeleeStates.menu()) == {:menu, "press 1"}
      assert {:ok, %{phase: :menu}} = Bot.info(bot)
    end

    test "whose function raises do not stop the bot" do
      bot = bot(menu: fn _state, _value -> raise "no menu" end)

      log =
        capture_log(fn ->
          assert Bot.step(bot, MeleeStates.menu()) == :none
          assert Bot.step(bot, MeleeStates.menu()) == :none
        end)

      assert length(String.split(log, "no menu")) == 2
      assert {:ok, %Action{}} = Bot.step(bot, hd(MeleeStates.game(1)))
    end
  end

  describe "policies" do
    test "are replaced in a running game" do
      {:ok, better} = Policy.init(@melee, seed: 2)
      bot = bot(session: [seed: 7, deterministic: true])
      {before, rest} = MeleeStates.game(160) |> Enum.split(120)
      play(bot, before)
      assert Bot.load(bot, better) == :ok
      {:ok, session} = Session.open(better, seed: 7, deterministic: true)

      expected =
        for state <- rest do
          {:ok, frame} = Melee.frame(state, 1)
          {:ok, action} = Session.act(session, frame)
          action.choices
        end

      assert inputs(play(bot, rest)) == expected
      assert {:error, %Error{kind: :not_found}} = Bot.load(bot, "missing.safetensors")

      assert {:error, %Error{kind: :mismatch}} =
               Bot.load(
                 bot,
                 policy(embedding: {:vector, 1}, backbone: :mlp, heads: [a: {:categorical, 2}])
               )

      assert {:ok, _} = Bot.step(bot, List.last(rest))
    end

    test "of a serving are shared, and a serving that restarts costs the memory alone" do
      policy = policy()
      serving = start_supervised!({Serving, policy: policy, name: __MODULE__.Shared})
      bots = for _ <- 1..3, do: bot(policy: nil, serving: __MODULE__.Shared)
      states = MeleeStates.game(110)
      answers = for bot <- bots, do: play(bot, states)
      assert [one] = Enum.uniq(answers)
      assert inputs(Enum.drop(one, 83)) == inputs(reference(policy, states))

      Process.exit(serving, :kill)
      [bot | _] = bots
      next = %{List.last(states) | frame: List.last(states).frame + 1}

      eventually(
        fn ->
          {:ok, _input} = Bot.step(bot, next)
          {:ok, info} = Bot.info(bot)
          info.game
        end,
        &(&1.errors >= 1 or &1.repeated > 3)
      )

      later = for i <- 2..200, do: %{next | frame: next.frame + i}
      assert Enum.any?(play(bot, later), &(&1.confidence != nil))
    end

    test "of a serving that is down when a game begins play it once the serving is back" do
      policy = policy()

      serving =
        start_supervised!({Serving, policy: policy, name: __MODULE__.Down},
          id: :down,
          restart: :temporary
        )

      bot = bot(policy: nil, serving: __MODULE__.Down)
      states = MeleeStates.game(140)
      play(bot, states)
      assert Bot.step(bot, MeleeStates.menu()) == :none
      monitor = Process.monitor(serving)
      Process.exit(serving, :kill)
      assert_receive {:DOWN, ^monitor, :process, _pid, _reason}
      {down, up} = Enum.split(states, 100)
      play(bot, down)
      start_supervised!({Serving, policy: policy, name: __MODULE__.Down}, id: :up)
      play(bot, up)
      game = ended(bot)
      assert length(Bot.games(bot)) == 2
      assert game.errors in 17..20
      assert game.decisions == 57 - game.errors
    end

    test "of a declared game are played, and the input has the game's parts" do
      game =
        Game.new!(
          name: :walk,
          fields: [x: [type: :number]],
          input: [step: [type: {:choice, 3}], fire: [type: {:flags, [:a, :b]}]]
        )

      {:ok, policy} = Policy.init([embedding: game, backbone: :gru, hidden_size: 8], seed: 1)
      bot = bot(policy: policy)

      assert {:ok, %Action{input: %{step: _, fire: %{a: _, b: _}}}} =
               Bot.step(bot, {10, %{x: 0.5}})

      assert {:ok, _} = Bot.step(bot, {11, %{x: 0.25}})
      assert ended(bot).decisions == 2
    end
  end

  describe "options" do
    test "that contradict each other are refused by name" do
      for {opts, message} <- [
            {[], "needs the option :policy or :serving"},
            {[policy: policy(), serving: :a], "not both"},
            {[policy: policy(), bridge: String], "is not a Sconce.Bot.Bridge"},
            {[policy: policy(), bridge: 3], "{module, options}"},
            {[policy: policy(), session: [frame_delay: 1]], "give it to the bot"},
            {[policy: policy(), port: 5], "port"},
            {[policy: policy(), record: true], "option :record needs the option :on_game"},
            {[policy: vectors(), frame_delay: :measure], "needs a policy of Melee's controller"},
            {[policy: vectors(), jump_debounce: 3], "needs a policy of Melee's controller"},
            {[policy: policy(), jump_debonce: 1], "did you mean :jump_debounce"}
          ] do
        assert_raise ArgumentError, ~r/#{Regex.escape(message)}/, fn -> Bot.start_link(opts) end
      end
    end

    defp vectors,
      do: policy(embedding: {:vector, 1}, backbone: :mlp, heads: [go: {:bernoulli, 2}])

    test "for a neutral input that is not the policy's are errors" do
      for neutral <- [%{gone: 1}, %{go: [0]}, %{go: [0, 0, 0]}, %{}] do
        assert {:error, %Error{kind: :mismatch, op: :bot} = error} =
                 Bot.start_link(policy: vectors(), neutral: neutral)

        assert Exception.message(error) =~ "neutral"
      end
    end

    test "of its session that fail are answers, and leave no process" do
      {:links, before} = Process.info(self(), :links)
      assert {:error, %Error{}} = Bot.start_link(policy: policy(), session: [snapshot: "broken"])
      assert Process.info(self(), :links) == {:links, before}
      assert {:error, {:already_started, _}} = twice()
    end

    defp twice do
      bot(name: __MODULE__.Named)
      Bot.start_link(policy: policy(), name: __MODULE__.Named)
    end
  end
end

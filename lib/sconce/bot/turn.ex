defmodule Sconce.Bot.Turn do
  @moduledoc false
  # The answer of a bot to one event of its game. It begins and ends games, places frames, decides, and counts. It knows no
  # process and no bridge.

  alias Sconce.{Action, Embedding, Error, Game, Policy, Pressure, Report, Session}
  alias Sconce.Bot.{Delay, Player, Row, Source, Totals}
  alias Sconce.Compat.Melee
  alias Sconce.Policy.Spec

  # The first frame of a Melee game with a decision: the state that the players' first input answers.
  @control -40
  # Old frames in order after which a game has begun anew, although nothing said so.
  @anew 3
  # Inputs that are kept for later frames.
  @logged 64
  @pressure Pressure.new(:play)
  # Most games whose figures are kept.
  @games 100

  @enforce_keys [:options, :spec, :open, :first_frame, :melee?, :totals]
  defstruct @enforce_keys ++
              [:player, :game, :sent, :delay, :measured, :acc, :report, :unseen] ++
              [lag: 0, log: %{}, refused: [], old: {nil, 0}, played: 0, games: [], ended: []]

  @typedoc """
  `sent` is the action that went out last, `log` the latest ones by frame number, and `lag` the delay of the session.
  `refused` are numbers of frames after the last decision that could not be read. `ended` are games that ended since
  `take_ended/1`. `unseen` is the frame that was answered and that `seen/1` has not taken yet.
  """
  @type t :: %__MODULE__{}

  @typedoc "An action to send, a value of the menu's function, or nothing."
  @type reply :: {:input, Action.t()} | {:menu, term} | :none

  @doc "Loads the policy and opens a session, which belongs to the caller."
  @spec open(keyword) :: {:ok, t} | {:error, Error.t()}
  def open(options) do
    with {:ok, open, spec} <- Source.find(options[:policy], options[:serving], options[:session]),
         :ok <- Source.suits!(options, spec),
         turn = %__MODULE__{
           options: options,
           totals: Totals.new(),
           spec: spec,
           open: open,
           melee?: Player.melee?(spec),
           first_frame: first_frame(options[:first_frame], Player.melee?(spec)),
           delay: if(options[:frame_delay] == :measure, do: Delay.new())
         },
         do: with_player(turn)
  end

  defp first_frame(:auto, melee?), do: if(melee?, do: @control)
  defp first_frame(given, _melee?), do: given

  # Opens a session, and closes the one before.
  defp with_player(%{options: options} = turn) do
    delay = if options[:frame_delay] == :measure, do: turn.measured, else: options[:frame_delay]
    delay = if delay, do: [frame_delay: delay], else: []

    # A decision that is made too late is taken back.
    with {:ok, session} <- turn.open.([rollback: max(options[:rollback], 1)] ++ delay),
         {:ok, %{frame_delay: lag}} <- Session.info(session) do
      if turn.player, do: Session.close(turn.player.session)
      names = [:action_repeat, :jump_debounce, :neutral, :rollback]
      player = Player.new(session, Keyword.take(options, names))
      {:ok, %{turn | player: player, lag: lag || 0}}
    end
  end

  @doc "Takes another policy at once. Its memory is empty."
  @spec load(t, Policy.t() | Path.t()) :: {:ok, t} | {:error, Error.t()}
  def load(%__MODULE__{options: options} = turn, policy) do
    with {:ok, open, spec} <- Source.find(policy, nil, options[:session]),
         :ok <- Source.same_game(turn.spec, spec),
         do: with_player(%{turn | open: open, spec: spec})
  end

  @doc """
  Answers one event of a bridge that came at `came`, in native monotonic time. The contents of the event are taken in by
  `seen/1`, after the answer has gone out.
  """
  @spec event(t, tuple, integer) :: {reply, t}
  def event(%{unseen: {_number, _row}} = turn, event, came), do: event(seen(turn), event, came)
  def event(turn, {:frame, state}, came), do: state(turn, state, came)
  def event(turn, {:menu, state}, _came), do: menu(turn, state)
  def event(turn, {:over, reason}, _came), do: {:none, over(turn, reason)}

  defp state(turn, %_{} = state, came) do
    cond do
      not Melee.recognised?(state) -> frame(turn, Map.get(state, :frame), state, came)
      not is_map_key(state, :menu_state) -> refuse(turn, number(state), without_menu())
      Melee.phase(state) == :game -> melee(turn, state, came)
      true -> menu(turn, state)
    end
  end

  defp state(turn, {number, frame}, came), do: frame(turn, number, frame, came)
  defp state(turn, %{frame: number} = frame, came), do: frame(turn, number, frame, came)
  defp state(turn, other, _came), do: refuse(turn, nil, unnumbered(other))

  defp melee(turn, state, came) do
    port = Melee.port(state, turn.options[:port])

    case Melee.frame(state, port, stage_ids: turn.options[:stage_ids]) do
      {:ok, frame} -> frame(turn, state.frame, frame, came)
      {:error, error} -> refuse(turn, number(state), error)
    end
  end

  defp number(%{frame: number}) when is_integer(number), do: number
  defp number(_state), do: nil

  defp frame(turn, number, frame, came) when is_integer(number) do
    with {:ok, row} <- Embedding.pack(turn.spec.embedding, frame),
         true <- not is_binary(frame) or Row.finite?(row) || not_finite() do
      row = if turn.melee?, do: Row.numbered(row, number), else: row
      turn |> begun(number) |> placed(number, row, observed(frame), came)
    else
      {:error, error} -> refuse(turn, number, error)
    end
  end

  defp frame(turn, _number, frame, _came), do: refuse(turn, nil, unnumbered(frame))

  defp not_finite,
    do:
      {:error,
       %Error{kind: :non_finite, op: :frame, details: %{what: "frame", value: "a packed number"}}}

  # Without it, a game would be taken for a menu.
  defp without_menu,
    do: %Error{kind: :not_found, op: :step, details: %{what: ":menu_state of the game state"}}

  defp unnumbered(got) do
    expected = "a game state, or {number, frame}"
    details = %{what: "frame", expected: expected, got: inspect(got, limit: 5)}
    %Error{kind: :mismatch, op: :step, details: details}
  end

  defp observed(%{previous_action: %{main_stick: %{}, buttons: %{}} = seen}), do: seen
  defp observed(_frame), do: nil

  # A frame that cannot be read is answered by the neutral input, and the memory does not see it.
  defp refuse(turn, number, error) do
    turn = counted(turn, :errors)
    neutral(%{turn | game: %{turn.game | error: error}, refused: [number | turn.refused]})
  end

  defp neutral(turn) do
    case neutral_action(turn) do
      nil -> {:none, turn}
      action -> {{:input, action}, %{turn | sent: action}}
    end
  end

  @doc "The neutral input of the policy, or nil."
  @spec neutral_action(t) :: Action.t() | nil
  def neutral_action(%{player: %{neutral: nil}}), do: nil

  def neutral_action(%{player: %{neutral: choices}, spec: spec}) do
    if Spec.controller?(spec) do
      struct(%Action{choices: choices}, Melee.neutral())
    else
      %Action{choices: choices, input: input(spec, choices)}
    end
  end

  defp input(%Spec{embedding: {%Game{} = game, _options}, heads: heads} = spec, choices),
    do: if(Spec.reads_inputs?(spec), do: Game.Frame.chosen(game, heads, choices))

  defp input(_spec, _choices), do: nil

  # Begins a game at its first frame, and at a frame number that only a new game can have.
  defp begun(%{game: nil} = turn, number), do: begin(turn, number)

  defp begun(%{game: game, player: player, old: {before, count}} = turn, number) do
    last = player.last || number

    cond do
      # All frames of the game so far could not be read.
      game.first == nil ->
        fresh(turn, game, number)

      number >= last - player.kept ->
        %{turn | old: {nil, 0}}

      number <= game.first ->
        turn |> over(:restarted) |> begin(number)

      before == number - 1 and count + 1 >= @anew ->
        turn |> over(:restarted) |> begin(number)

      before == number - 1 ->
        %{turn | old: {number, count + 1}}

      true ->
        %{turn | old: {number, 1}}
    end
  end

  defp begin(turn, number) do
    turn = %{turn | played: turn.played + 1}
    fresh(turn, Sconce.Bot.Game.new(turn.played), number)
  end

  # An empty memory. A session that has ended, such as that of a serving that restarted, is opened again.
  defp fresh(%{player: player} = turn, game, number) do
    turn = %{
      turn
      | game: %{game | first: number},
        report: if(turn.melee?, do: Report.new(players: {"bot", "opponent"})),
        delay: if(turn.delay, do: Delay.new()),
        old: {nil, 0},
        sent: nil,
        log: %{},
        refused: []
    }

    case Player.reset(player) do
      {:ok, player} -> %{turn | player: player}
      {:error, _error} -> renewed(%{turn | player: Player.blank(player)})
    end
  end

  # Before the first frame with a decision: the neutral input, or the probe of the delay.
  defp placed(%{first_frame: first} = turn, number, _row, seen, _came)
       when is_integer(first) and number < first do
    {reply, turn} = neutral(turn)
    probe = turn.delay && Delay.probe(number)

    case {reply, probe} do
      {{:input, action}, {x, y}} ->
        action = %{action | main_stick: %{x: x, y: y}}
        {{:input, action}, measured(%{turn | sent: action}, number, seen)}

      _neutral ->
        {reply, measured(turn, number, seen)}
    end
  end

  defp placed(turn, number, row, _seen, came) do
    case Player.place(turn.player, number, row) do
      :same ->
        turn |> counted(:repeated) |> again()

      :old ->
        turn |> counted(:out_of_order) |> again()

      :again ->
        turn |> counted(:rollbacks) |> noted(number, row) |> again()

      :gap when number < turn.player.last ->
        turn |> counted(:out_of_order) |> filled() |> noted(number, row) |> again()

      place ->
        turn = if place == :gap, do: skipped(turn, number), else: turn
        {reply, turn} = turn |> prepared() |> corrected() |> decided(number, row, came)
        {reply, if(turn.player.last == number, do: %{turn | unseen: {number, row}}, else: turn)}
    end
  end

  defp again(%{sent: nil} = turn), do: {:none, turn}
  defp again(%{sent: action} = turn), do: {{:input, action}, turn}

  defp counted(%{game: nil} = turn, kind) do
    turn = %{turn | played: turn.played + 1, game: Sconce.Bot.Game.new(turn.played + 1)}
    counted(turn, kind)
  end

  defp counted(%{game: game, totals: totals} = turn, kind) do
    Totals.count(totals, kind)
    %{turn | game: Sconce.Bot.Game.count(game, kind)}
  end

  # Frames that came and could not be read are not skipped.
  defp skipped(%{game: game, player: %{last: last}} = turn, number) do
    read = Enum.count(Enum.uniq(turn.refused), &(is_integer(&1) and &1 > last and &1 < number))
    %{turn | game: %{game | skipped: game.skipped + number - last - 1 - read}}
  end

  # A skipped frame that has come after all.
  defp filled(%{game: game} = turn), do: %{turn | game: %{game | skipped: game.skipped - 1}}

  defp noted(turn, number, row), do: %{turn | player: Player.note(turn.player, number, row)}

  @doc "Whether frames wait to be put in their places."
  @spec behind?(t) :: boolean
  def behind?(%__MODULE__{player: player}), do: Player.oldest_noted(player) != nil

  @doc "Puts frames that came after later ones, or again, in their places. The next decision does it otherwise."
  @spec corrected(t) :: t
  def corrected(%__MODULE__{player: player} = turn) do
    case Player.oldest_noted(player) do
      nil -> turn
      number -> corrected(turn, number)
    end
  end

  @doc "Forgets such frames."
  @spec forget(t) :: t
  def forget(%__MODULE__{player: player} = turn), do: %{turn | player: Player.forget(player)}

  defp corrected(turn, number) do
    case Player.correct(turn.player) do
      {:ok, player} -> restated(%{turn | player: player}, number)
      {:error, error, player} -> failed(%{turn | player: player}, error)
    end
  end

  # A report takes a frame for all after it, so these follow again. They are those of before until the game repeats them.
  defp restated(turn, number) do
    frames = for {at, _before, row, _sent} <- turn.player.past, at >= number, do: {at, row}
    Enum.reduce(Enum.reverse(frames), turn, fn {at, row}, turn -> stated(turn, at, row) end)
  end

  # The first decision of a game, after the countdown has shown the delay.
  defp prepared(%{player: %{last: nil}, delay: %Delay{}} = turn) do
    case Delay.measure(turn.delay) do
      delay when is_integer(delay) and delay != turn.measured ->
        renewed(%{turn | measured: delay})

      _same ->
        turn
    end
  end

  defp prepared(turn), do: turn

  defp renewed(turn) do
    case with_player(turn) do
      {:ok, turn} -> turn
      {:error, error} -> failed(turn, error)
    end
  end

  defp failed(%{game: game} = turn, error), do: %{turn | game: %{game | error: error}}

  defp decided(%{player: before, options: options} = turn, number, row, came) do
    case left(options[:deadline_ms], came) do
      0 ->
        late(turn, number, row)

      left ->
        case Player.decide(before, number, row, deadline_ms: left) do
          {:ok, {_choices, action}, player} ->
            if left(options[:deadline_ms], came) == 0,
              do: too_late(turn, before, player, number, row),
              else: answered(%{turn | player: player}, action)

          {:late, _error, player} ->
            late(%{turn | player: player}, number, row)

          {:error, error, player} ->
            %{turn | player: player} |> refuse(number, error) |> reopened(error)
        end
    end
  end

  # Whole milliseconds until the deadline, rounded up.
  defp left(deadline_ms, came) do
    past = System.convert_time_unit(System.monotonic_time() - came, :native, :microsecond)
    max(div(deadline_ms * 1000 - past + 999, 1000), 0)
  end

  defp answered(turn, nil), do: turn |> counted(:decisions) |> again()

  defp answered(turn, action),
    do: {{:input, action}, counted(%{turn | sent: action}, :decisions)}

  defp late(turn, number, row) do
    {_sent, player} = Player.late(turn.player, number, row)
    %{turn | player: player} |> skipped() |> neutral()
  end

  defp too_late(turn, before, made, number, row) do
    {_sent, player} = Player.take_back(before, made, number, row)
    %{turn | player: player} |> skipped() |> neutral()
  end

  # The row of the table for a deadline in play.
  defp skipped(turn) do
    Pressure.tell(@pressure, Pressure.event(@pressure, :deadline, :skip, nil))
    counted(turn, :late)
  end

  # The session is gone: its serving has stopped or restarted.
  defp reopened({reply, turn}, %Error{kind: kind})
       when kind in [:not_found, :cancelled, :unavailable],
       do: {reply, renewed(turn)}

  defp reopened(answer, _error), do: answer

  @doc "Takes what the last answered frame says of the game, after a decision or the neutral input in its place."
  @spec seen(t) :: t
  def seen(%__MODULE__{unseen: nil} = turn), do: turn

  def seen(%__MODULE__{unseen: {number, row}} = turn),
    do: turn |> stated(number, row) |> unseen()

  @doc "Keeps the input of the last answered frame alone."
  @spec unseen(t) :: t
  def unseen(%__MODULE__{unseen: {number, _row}, sent: sent, log: log} = turn) do
    log = log |> Map.delete(number - @logged) |> Map.put(number, sent)
    %{turn | refused: [], unseen: nil, log: log}
  end

  # Remembers what a frame says of the game, in the place of what it said before.
  defp stated(%{melee?: true, game: game, options: options} = turn, number, row) do
    {percent, stocks} = Row.score(row)

    # A recorded frame has the input that led to it: the one that the game reports, or else the one that the bot sent.
    row = Row.with_input(row, turn.log[number - 1 - turn.lag])
    rows = if options[:record], do: recorded(game.rows, number, row), else: []
    report = with {:error, _too_old} <- Report.add(turn.report, row), do: {:ok, turn.report}

    %{
      turn
      | report: elem(report, 1),
        game: %{game | percent: percent, stocks: stocks, rows: rows}
    }
  end

  defp stated(%{game: game, options: options} = turn, number, row) do
    rows = if options[:record], do: recorded(game.rows, number, row), else: []
    %{turn | game: %{game | rows: rows}}
  end

  # Rows by number, the newest first.
  defp recorded([{at, _} = later | rest], number, row) when at > number,
    do: [later | recorded(rest, number, row)]

  defp recorded([{number, _before} | rest], number, row), do: [{number, row} | rest]
  defp recorded(rows, number, row), do: [{number, row} | rows]

  defp measured(%{delay: nil} = turn, _number, _seen), do: turn

  defp measured(%{delay: delay, sent: sent} = turn, number, seen),
    do: %{turn | delay: Delay.add(delay, number, sent, seen)}

  defp menu(%{options: options} = turn, state) do
    turn = over(turn, :finished)

    case options[:menu] do
      nil ->
        {:none, turn}

      fun ->
        case fun.(state, turn.acc) do
          {nil, acc} -> {:none, %{turn | acc: acc}}
          {input, acc} -> {{:menu, input}, %{turn | acc: acc}}
        end
    end
  end

  @doc "Ends the game that is played, if any."
  @spec over(t, term) :: t
  def over(%{game: nil} = turn, _reason), do: turn

  def over(turn, reason) do
    %{game: game} = turn = turn |> seen() |> corrected()
    report = if turn.report, do: Report.finish(turn.report)
    game = %{Sconce.Bot.Game.figures(game, reason) | report: report}
    kept = %{game | rows: [], buckets: %{}}

    %{
      turn
      | game: nil,
        sent: nil,
        report: nil,
        games: Enum.take([kept | turn.games], @games),
        ended: [game | turn.ended]
    }
  end

  @doc "The games that have ended since the last call, oldest first."
  @spec take_ended(t) :: {[Sconce.Bot.Game.t()], t}
  def take_ended(%{ended: ended} = turn), do: {Enum.reverse(ended), %{turn | ended: []}}

  @doc "Takes the time from a frame to its input."
  @spec took(t, integer) :: t
  def took(%{game: nil} = turn, _us), do: turn

  def took(%{game: game, totals: totals} = turn, us) do
    Totals.took(totals, us)
    %{turn | game: Sconce.Bot.Game.took(game, us)}
  end
end

defmodule Sconce.Bot do
  alias Sconce.{Error, Options, Policy, Session}
  alias Sconce.Bot.{Catalogue, Game, Listing, Reader, Turn}
  alias Sconce.Policy.Spec

  require Logger

  # Longest wait for a bridge to disconnect.
  @stop_ms 2_000

  @moduledoc """
  One process that plays one running game with a `Sconce.Policy`: frames in, inputs out, each within a deadline.

      children = [
        {Sconce.Bot, name: MyApp.Bot, policy: "run/best.safetensors", port: 1,
         bridge: {Sconce.Bot.Bridge.Libmelee, session: MyApp.Dolphin}}
      ]

      Supervisor.start_link(children, strategy: :one_for_one)

  The bot opens a session of its own, and does what a game loop needs around it:

  | a frame that | is answered by |
  |---|---|
  | is new | one decision, or the choice that is held for `:action_repeat` frames |
  | came twice | the same input again |
  | is late, because the decision took longer than `:deadline_ms` | the neutral input; the memory steps over the frame with that input |
  | came after a later one, or came again with other contents (a rollback) | the input of the newest frame; the memory is corrected with the inputs that were sent |
  | cannot be read | the neutral input; the error is in the figures of the game |
  | is before control (-40 in Melee) | the neutral input |

  The deadline counts from the moment at which the bridge brings the frame. Frames that wait before the bridge are
  answered in order, each with a decision of its own.

  So a frame has one decision at most, and the memory of the policy is that of the inputs that went out. Between two
  games the memory is emptied. A game begins with its first frame, and ends with a menu, the bridge's word, a lost
  connection, or frame numbers that begin anew.

  ## Frames

  A frame is a `Melee.GameState` of libmelee_ex, an `ExPhil.Bridge.GameState`, a frame of the policy with its number as
  `{number, frame}`, or a map of a frame with a `frame` number. Libraries are not needed: see `Sconce.Compat.Melee`.

  An app with a loop of its own calls `step/3` with each frame, and needs no bridge:

      iex> game = Sconce.Game.new!(name: :walk, fields: [x: [type: :number]], input: [step: [type: {:choice, 3}]])
      iex> {:ok, policy} = Sconce.Policy.init([embedding: game, backbone: :gru, hidden_size: 8], seed: 1)
      iex> {:ok, bot} = Sconce.Bot.start_link(policy: policy, deadline_ms: 1_000)
      iex> {:ok, action} = Sconce.Bot.step(bot, {0, %{x: 0.5}})
      iex> action.input.step in 0..2
      true
      iex> {:ok, again} = Sconce.Bot.step(bot, {0, %{x: 0.5}})
      iex> again == action
      true
      iex> Sconce.Bot.over(bot)
      iex> [game] = Sconce.Bot.games(bot)
      iex> {game.frames, game.decisions, game.repeated}
      {2, 1, 1}

  The guide [A bot that plays](bot.html) goes from `mix new --sup` to a supervised bot.

  ## Failures

  A bridge that closes, raises or exits ends the game; the bot connects again, `:reconnect` times in a row, and then stops
  with the error as its reason, so that its supervisor starts it anew. A function of the app that raises is logged, and the
  bot plays on. When the bot stops it ends its game, sends the neutral input and disconnects. A serving that restarts costs
  the memory of the game.

  ## Options

  #{Catalogue.docs(:start)}
  """

  use Sconce.Server, shutdown: 5_000

  @typedoc "The pid or the name of a bot."
  @type bot :: GenServer.server()

  @doc """
  Starts a bot. Without a bridge it waits for `step/3`; the moduledoc has an example.

  Wrong options raise `ArgumentError`. A policy or a serving that cannot be had is an error.

      iex> {:error, error} = Sconce.Bot.start_link(policy: "missing.safetensors")
      iex> error.kind
      :not_found
  """
  @spec start_link(keyword) :: GenServer.on_start() | {:error, Error.t()}
  def start_link(opts) do
    options = opts |> Options.validate!(Catalogue.schema(:start)) |> checked!()
    name = if options[:name], do: [name: Options.name!(options[:name])], else: []

    # The caller loads and opens, so that a failure is an answer and not an exit. Then the session is the bot's.
    with {:ok, turn} <- Turn.open(options),
         {:ok, pid} <- started(turn, name) do
      case Session.transfer(turn.player.session, pid) do
        :ok ->
          send(pid, :connect)
          {:ok, pid}

        {:error, error} ->
          Process.unlink(pid)
          Process.exit(pid, :kill)
          _ = Session.close(turn.player.session)
          {:error, error}
      end
    end
  end

  defp started(turn, name) do
    with {:error, _already_started} = refused <- GenServer.start_link(__MODULE__, turn, name) do
      _ = Session.close(turn.player.session)
      refused
    end
  end

  defp checked!(options) do
    policy = policy!(options[:policy], options[:serving])

    for name <- [:rollback, :frame_delay],
        Keyword.has_key?(options[:session], name),
        do: raise(ArgumentError, "option #{inspect(name)} of :session: give it to the bot")

    options |> Keyword.replace!(:policy, policy) |> Keyword.update!(:bridge, &bridge!/1)
  end

  defp policy!(nil, nil), do: raise(ArgumentError, "a bot needs the option :policy or :serving")
  defp policy!(nil, _serving), do: nil
  defp policy!(%Policy{spec: %Spec{}} = policy, nil), do: policy
  defp policy!(path, nil), do: Options.path!(path)

  defp policy!(_policy, _serving),
    do: raise(ArgumentError, "a bot takes :policy or :serving, not both")

  defp bridge!(nil), do: nil
  defp bridge!(module) when is_atom(module), do: bridge!({module, []})

  defp bridge!({module, opts} = bridge) when is_atom(module) do
    Options.keyword!(opts)

    unless Code.ensure_loaded?(module) and function_exported?(module, :next, 2),
      do: raise(ArgumentError, "option :bridge: #{inspect(module)} is not a Sconce.Bot.Bridge")

    bridge
  end

  defp bridge!(other), do: Options.argument!("option :bridge", other, "{module, options}")

  @doc """
  Answers one frame of a game that the app drives itself: `{:ok, action}`, a `Sconce.Action`; `{:menu, value}` outside of a
  game, what the `:menu` function returned; or `:none`, if there is nothing to send.

  The deadline counts from the call. `timeout_ms` is how long the caller waits at most.

  | kind of error | cause |
  |---|---|
  | `:mismatch` | the bot has a bridge, which drives it |
  | `:deadline` | no answer within `timeout_ms` |
  | `:cancelled` | the bot has ended |

      iex> spec = [embedding: {:vector, 1}, backbone: :mlp, heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, bot} = Sconce.Bot.start_link(policy: policy, session: [deterministic: true], deadline_ms: 1_000)
      iex> {:ok, action} = Sconce.Bot.step(bot, {0, [0.5]})
      iex> action.choices.go in [[0], [1]]
      true
      iex> Sconce.Bot.step(bot, {1, [:nan]})
      :none
  """
  @spec step(bot, term, pos_integer) ::
          {:ok, Sconce.Action.t()} | {:menu, term} | :none | {:error, Error.t()}
  def step(bot, state, timeout_ms \\ 5_000)

  def step(bot, state, timeout_ms) when timeout_ms in 1..4_294_967_295,
    do: ask(bot, {:step, state, System.monotonic_time()}, :step, timeout_ms)

  def step(_bot, _state, other), do: Options.argument!("timeout_ms", other, "1 or more")

  @doc """
  Ends the game that is played, if any, and empties the memory. A bot with a bridge begins another one with the next frame.

      iex> spec = [embedding: {:vector, 1}, backbone: :mlp, heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, bot} = Sconce.Bot.start_link(policy: policy)
      iex> Sconce.Bot.over(bot)
      :ok
  """
  @spec over(bot) :: :ok | {:error, Error.t()}
  def over(bot), do: ask(bot, :over, :over)

  @doc """
  Returns the `Sconce.Bot.Game` of each of the last 100 games that have ended, oldest first, without their `rows`.

      iex> spec = [embedding: {:vector, 1}, backbone: :mlp, heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, bot} = Sconce.Bot.start_link(policy: policy, deadline_ms: 1_000)
      iex> for n <- 1..3, do: {:ok, _action} = Sconce.Bot.step(bot, {n, [0.5]})
      iex> Sconce.Bot.over(bot)
      iex> for game <- Sconce.Bot.games(bot), do: {game.number, game.decisions, game.late, game.ended}
      [{1, 3, 0, :finished}]
  """
  @spec games(bot) :: [Game.t()] | {:error, Error.t()}
  def games(bot), do: ask(bot, :games, :games)

  @doc """
  Returns what the bot does: `phase` (`:idle`, `:menu`, `:game` or `:closed`), the figures of the present `game`, or nil,
  the number of games `played`, the measured `delay`, the `policy` in words, and the last `error` of the bridge.

      iex> spec = [embedding: {:vector, 1}, backbone: :mlp, heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, bot} = Sconce.Bot.start_link(policy: policy)
      iex> {:ok, info} = Sconce.Bot.info(bot)
      iex> {info.phase, info.played, info.game}
      {:idle, 0, nil}
  """
  @spec info(bot) :: {:ok, map} | {:error, Error.t()}
  def info(bot), do: ask(bot, :info, :info)

  @doc """
  Takes another policy, a struct or the path of a file, at once; its memory begins empty. A file that cannot be read, or
  a policy for another game, leaves the bot as it is.

      iex> spec = [embedding: {:vector, 1}, backbone: :mlp, heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, bot} = Sconce.Bot.start_link(policy: policy)
      iex> {:ok, better} = Sconce.Policy.init(spec, seed: 2)
      iex> Sconce.Bot.load(bot, better)
      :ok
  """
  @spec load(bot, Policy.t() | Path.t()) :: :ok | {:error, Error.t()}
  def load(bot, %Policy{} = policy), do: ask(bot, {:load, policy}, :load, :infinity)
  def load(bot, path), do: ask(bot, {:load, Options.path!(path)}, :load, :infinity)

  defp ask(bot, request, op, timeout \\ 5_000) do
    Options.server?(bot) || Options.argument!("bot", bot, "the pid or the name of a bot")
    GenServer.call(bot, request, timeout)
  catch
    :exit, {:timeout, _call} ->
      details = %{what: "the answer of the bot", deadline_ms: timeout}
      {:error, %Error{kind: :deadline, op: op, details: details}}

    :exit, _gone ->
      {:error, %Error{kind: :cancelled, op: op}}
  end

  @impl true
  def init(%Turn{} = turn) do
    # The death of a reader is the end of a game, not of the bot.
    if turn.options[:bridge], do: Process.flag(:trap_exit, true)
    Listing.start(turn.totals)
    {:ok, %{turn: turn, reader: nil, phase: :idle, failures: 0, error: nil, raised: nil}}
  end

  @impl true
  def handle_info(:connect, %{reader: nil, turn: %{options: options}} = state) do
    case options[:bridge] do
      nil -> {:noreply, state}
      {module, opts} -> {:noreply, %{state | reader: Reader.start_link(module, opts, options)}}
    end
  end

  def handle_info({:reader, reader, :connected}, %{reader: reader} = state),
    do: {:noreply, %{state | phase: :idle}}

  def handle_info({:reader, reader, {event, came, took}}, %{reader: reader} = state) do
    state = timed(state, took)
    {reply, state} = answer(state, event, came)
    Reader.reply(reader, reply)
    state = %{state | failures: 0, phase: phase(state.turn, event)}
    rested({:noreply, state |> seen() |> told()})
  end

  def handle_info(:timeout, %{turn: turn} = state) do
    case Reader.guarded(fn -> Turn.corrected(turn) end) do
      {:ok, turn} ->
        {:noreply, %{state | turn: turn}}

      {:error, reason} ->
        Logger.error("a bot could not correct frames: #{inspect(reason)}")
        {:noreply, %{state | turn: Turn.forget(turn)}}
    end
  end

  def handle_info({:EXIT, reader, reason}, %{reader: reader} = state),
    do: closed(%{state | reader: nil}, reason)

  # The game is over, and the bot connects again later.
  defp closed(%{turn: %{options: options} = turn} = state, reason) do
    reason = with {:closed, reason} <- reason, do: reason
    details = %{what: "the bridge", reason: inspect(reason, limit: 10, printable_limit: 200)}
    error = %Error{kind: :unavailable, op: :bridge, details: details}

    state =
      told(%{state | turn: Turn.over(turn, {:closed, reason}), phase: :closed, error: error})

    if state.failures < options[:reconnect] do
      Process.send_after(self(), :connect, options[:reconnect_ms])
      {:noreply, %{state | failures: state.failures + 1}}
    else
      {:stop, error, state}
    end
  end

  # The app's function for menus may raise, at each state anew: the first of errors of one kind is logged.
  defp answer(%{turn: turn, raised: raised} = state, event, came) do
    case Reader.guarded(fn -> Turn.event(turn, event, came) end) do
      {:ok, {reply, turn}} ->
        {reply, %{state | turn: turn}}

      {:error, {^raised, _message}} ->
        {:none, %{state | turn: turn |> Turn.forget() |> Turn.over(:finished)}}

      {:error, {kind, _message} = reason} ->
        Logger.error("a bot could not answer #{inspect(elem(event, 0))}: #{inspect(reason)}")
        {:none, %{state | turn: turn |> Turn.forget() |> Turn.over(:finished), raised: kind}}
    end
  end

  # Takes what the frame says of the game, after its answer has gone out.
  defp seen(%{turn: turn} = state) do
    case Reader.guarded(fn -> Turn.seen(turn) end) do
      {:ok, turn} ->
        %{state | turn: turn}

      {:error, {kind, _message} = reason} ->
        if kind != state.raised,
          do: Logger.error("a bot could not take a frame: #{inspect(reason)}")

        %{state | turn: Turn.unseen(turn), raised: kind}
    end
  end

  defp timed(state, nil), do: state
  defp timed(%{turn: turn} = state, us), do: %{state | turn: Turn.took(turn, us)}

  defp phase(%{game: nil}, {:over, _reason}), do: :idle
  defp phase(%{game: nil}, _event), do: :menu
  defp phase(_turn, _event), do: :game

  # Tells the app of games that have ended.
  defp told(%{turn: turn} = state) do
    {ended, turn} = Turn.take_ended(turn)
    fun = turn.options[:on_game]
    if fun, do: Enum.each(ended, fn game -> Task.start(fn -> fun.(game) end) end)
    %{state | turn: turn}
  end

  @impl true
  def handle_call({:step, frame, came}, from, %{turn: %{options: options}} = state) do
    if options[:bridge] do
      details = %{
        what: "step",
        expected: "a bot without a bridge",
        got: inspect(options[:bridge])
      }

      {:reply, {:error, %Error{kind: :mismatch, op: :step, details: details}}, state}
    else
      {reply, state} = answer(state, {:frame, frame}, came)
      past = System.convert_time_unit(System.monotonic_time() - came, :native, :microsecond)
      state = if match?({:input, _}, reply), do: timed(state, past), else: state
      GenServer.reply(from, sent(reply))
      rested({:noreply, told(seen(%{state | phase: phase(state.turn, {:frame, frame})}))})
    end
  end

  def handle_call(:over, _from, %{turn: turn} = state),
    do: {:reply, :ok, told(%{state | turn: Turn.over(turn, :finished), phase: :idle})}

  def handle_call(:games, _from, %{turn: turn} = state),
    do: {:reply, Enum.reverse(turn.games), state}

  def handle_call(:info, _from, %{turn: turn} = state) do
    info = %{
      phase: state.phase,
      game: turn.game && %{Game.figures(turn.game, nil) | rows: [], buckets: %{}},
      played: turn.played,
      delay: turn.measured,
      policy: Spec.summary(turn.spec),
      error: state.error
    }

    {:reply, {:ok, info}, state}
  end

  def handle_call({:load, policy}, _from, %{turn: turn} = state) do
    case Turn.load(turn, policy) do
      {:ok, turn} -> {:reply, :ok, %{state | turn: turn}}
      {:error, error} -> {:reply, {:error, error}, state}
    end
  end

  # A bot without another message puts frames of a rollback in their places before the next decision is due.
  defp rested(answer) do
    %{turn: turn} = elem(answer, tuple_size(answer) - 1)
    if Turn.behind?(turn), do: Tuple.insert_at(answer, tuple_size(answer), 0), else: answer
  end

  defp sent({:input, action}), do: {:ok, action}
  defp sent(other), do: other

  @impl true
  def terminate(_reason, %{reader: nil}), do: :ok

  def terminate(_reason, %{reader: reader, turn: turn} = state) do
    Reader.stop(reader, turn.game && Turn.neutral_action(turn), @stop_ms)
    told(%{state | turn: Turn.over(turn, :stopped)})
  end

  if {:format_status, 1} in GenServer.behaviour_info(:callbacks), do: @impl(true)
  @doc false
  def format_status(status),
    do: Map.replace_lazy(status, :state, &Map.take(&1, [:phase, :failures, :error]))
end

defmodule Sconce.Compat.ExPhil.Play do
  @moduledoc false
  # What ExPhil's agent does with one game state: one decision for each frame number, by a `Sconce.Bot.Player`. Knows no
  # process.

  alias Sconce.{Action, Embedding, Error, Session}
  alias Sconce.Bot.Player
  alias Sconce.Compat.ExPhil.{Answer, Source, Steering, Style}
  alias Sconce.Compat.Melee

  # The most frames between two decisions that are counted.
  @farthest 1_000_000

  @enforce_keys [:options, :style_id, :steering]
  defstruct @enforce_keys ++
              [:source, :player, :frame, :action, ring: [], decided: 0, warm: false]

  @typedoc """
  `frame` is the number of the state that was decided last, and `action` its action. `ring` has the latest inputs of a
  policy with a queue, newest first. `decided` counts decisions since the last reset.
  """
  @type t :: %__MODULE__{}

  @doc "Reads the files that the options name and opens a session, which belongs to the caller."
  @spec open(keyword) :: {:ok, t} | {:error, Error.t() | {:policy_load_failed, term}}
  def open(options) do
    with {:ok, id} <- Style.id(options),
         {:ok, steering} <- Steering.read(options[:steer_vector], options[:steer_alpha]) do
      play = %__MODULE__{options: options, style_id: id, steering: steering}

      case options[:policy] || options[:policy_path] do
        nil -> {:ok, play}
        given -> with {:error, reason} <- load(play, given), do: failed(reason)
      end
    end
  end

  defp failed(reason), do: {:error, {:policy_load_failed, reason}}

  @doc "Takes another policy. Its memory is empty; the last action and the jump cooldown stay, as in ExPhil."
  @spec load(t, term) :: {:ok, t} | {:error, Error.t() | {:invalid_policy, term}}
  def load(%__MODULE__{options: options} = play, given) do
    with {:ok, source} <- Source.load(given, options),
         {:ok, session} <- Source.open(source, options, play.steering) do
      Source.warn(source, options)
      close(play)
      player = Player.new(session, Keyword.take(options, [:action_repeat, :jump_debounce]))
      player = if play.player, do: after_swap(player, play.player), else: player
      {:ok, %{play | source: source, player: player, ring: [], decided: 0}}
    end
  end

  defp after_swap(player, old), do: %{kept(player, old) | sent: old.sent}

  defp kept(player, old),
    do: %{player | last: old.last, cooldown: old.cooldown, airborne?: old.airborne?}

  @doc "Closes the session, if there is one."
  @spec close(t) :: :ok | {:error, Error.t()}
  def close(%__MODULE__{player: nil}), do: :ok
  def close(%__MODULE__{player: player}), do: Session.close(player.session)

  @doc """
  Decides for a game state: the action, its confidence, and whether it is a decision of this state. A state with the
  number of the last one has its action.
  """
  @spec decide(t, term, keyword) :: {:ok, Action.t(), map, boolean, t} | {:error, Error.t()}
  def decide(%__MODULE__{} = play, state, asked) do
    number = number(state)

    if number != nil and number == play.frame and play.action != nil do
      {:ok, play.action, Answer.silent(), false, play}
    else
      with {:ok, row} <- row(play, state, asked),
           {:ok, play} <- anew(play, number),
           do: decided(play, number, row, asked)
    end
  end

  defp number(%{frame: number}) when is_integer(number), do: number
  defp number(_state), do: nil

  # The policy sees its own last choice, which the session has, and not the input that the game reports.
  defp row(%{source: source, options: options} = play, state, asked) do
    port = asked[:player_port]
    port = if Melee.recognised?(state), do: Melee.port(state, port), else: port

    with {:ok, frame} <- Melee.frame(state, port, stage_ids: options[:stage_ids]) do
      frame = %{frame | previous_action: nil, name_id: play.style_id}
      Embedding.pack(source.policy.spec.embedding, frame)
    end
  end

  # A queue of inputs begins anew with a game. A session keeps its inputs with its frames.
  defp anew(%{frame: before, source: %{queue_depth: depth}} = play, number)
       when is_integer(before) and is_integer(number) and number < before and depth > 1 do
    with {:ok, player} <- emptied(play.player), do: {:ok, %{play | player: player, ring: []}}
  end

  defp anew(play, _number), do: {:ok, play}

  defp emptied(player) do
    with {:ok, fresh} <- Player.reset(player), do: {:ok, kept(fresh, player)}
  end

  defp decided(%{player: player} = play, number, row, asked) do
    since = since(play.frame, number)
    tick = if player.last, do: player.last + since, else: 0

    case Player.decide(player, tick, row, sampling(play, asked) ++ pending(play, since)) do
      {:ok, {_choices, action}, player} ->
        own? = player.held == 1
        confidence = if own?, do: action.confidence, else: Answer.silent()
        {:ok, action, confidence, own?, answered(play, player, number, action, since)}

      {_failed, error, _player} ->
        {:error, error}
    end
  end

  # Game frames since the last decision. A number that goes back begins a new game.
  defp since(before, number) when is_integer(before) and is_integer(number) and number >= before,
    do: min(number - before, @farthest)

  defp since(_before, _number), do: 1

  defp sampling(%{options: options}, asked) do
    given =
      for name <- [:deterministic, :temperature, :deterministic_buttons],
          do: {name, Keyword.get(asked, name, options[name])}

    if options[:press_threshold],
      do: given ++ Keyword.take(options, [:press_threshold, :release_threshold]),
      else: given
  end

  # The game held the last input through frames that were not decided: the queue has it for each of them.
  defp pending(%{source: %{queue_depth: depth}, ring: [newest | _] = ring}, since)
       when depth > 1 and since > 1,
       do: [queue: held(ring, newest, since, depth)]

  defp pending(_play, _since), do: []

  defp held(ring, newest, since, depth),
    do: Enum.take(List.duplicate(newest, min(since - 1, depth)) ++ ring, depth)

  defp answered(%{source: %{queue_depth: depth}} = play, player, number, action, since) do
    ring = if depth > 1, do: pushed(play.ring, action.choices, since, depth), else: []

    %{
      play
      | player: player,
        frame: number,
        action: action,
        ring: ring,
        decided: play.decided + 1,
        warm: true
    }
  end

  defp pushed([], choices, _since, _depth), do: [choices]

  defp pushed([newest | _] = ring, choices, since, depth),
    do: Enum.take([choices | held(ring, newest, since, depth)], depth)

  @doc "Empties the memory before a game. The jump cooldown stays, as in ExPhil."
  @spec reset(t) :: {:ok, t} | {:error, Error.t()}
  def reset(%__MODULE__{player: nil} = play), do: {:ok, play}

  def reset(%__MODULE__{} = play) do
    with {:ok, player} <- emptied(play.player),
         do: {:ok, %{play | player: player, action: nil, ring: [], decided: 0}}
  end

  @doc "Makes a decision on a session of its own, and returns the milliseconds that it took."
  @spec warm(t) :: {:ok, non_neg_integer, t} | {:error, Error.t()}
  def warm(%__MODULE__{source: source} = play) do
    start = System.monotonic_time(:millisecond)

    with {:ok, session} <- Source.open(source, play.options, play.steering) do
      answer = Session.act(session, standing())
      _ = Session.close(session)

      with {:ok, _action} <- answer,
           do: {:ok, System.monotonic_time(:millisecond) - start, %{play | warm: true}}
    end
  end

  defp standing do
    player = %Sconce.Frame.Player{
      percent: 0.0,
      facing: 1,
      x: -40.0,
      y: 0.0,
      action: 14,
      character: 1,
      on_ground: true,
      stock: 4
    }

    %Sconce.Frame{own: player, opponent: %{player | x: 40.0, facing: -1}, stage: 32}
  end

  @doc "The settings and the policy in words, with ExPhil's keys."
  @spec config(t) :: map
  def config(%__MODULE__{options: options, source: source} = play) do
    stateful? = source != nil and Source.stateful?(source, options)
    windowed? = source != nil and source.temporal and not stateful?

    options
    |> Keyword.take([:name, :frame_delay, :deterministic, :temperature, :stateful_step])
    |> Map.new()
    |> Map.merge(%{
      has_policy: source != nil,
      temporal: source != nil and source.temporal,
      backbone: if(source, do: source.backbone, else: :mlp),
      window_size: if(source, do: source.window_size, else: 60),
      buffer_size: if(windowed?, do: min(play.decided, source.window_size), else: 0),
      use_incremental: false,
      incremental_active: false,
      incremental_step: 0,
      stateful_step_active: stateful?
    })
  end
end

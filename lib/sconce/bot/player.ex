defmodule Sconce.Bot.Player do
  @moduledoc false
  # One decision for each game frame, over a session: repeated, held, debounced, late, and corrected after a rollback.
  #
  # The session's memory is that of the inputs that went out. A frame without a decision of its own (held, or late) enters
  # it with the choices that were sent, so that the next decision sees what was really played.

  alias Sconce.{Action, Error, Session}
  alias Sconce.Bot.Row
  alias Sconce.Policy.Spec

  # Jumpsquat, the frames between a jump's input and the jump.
  @jumpsquat 24
  @jump [:x, :y]
  # Frames that may wait to enter the memory. A bot that is further behind begins with an empty memory.
  @owed 600

  # The fields that stay from game to game.
  @kept [:session, :melee?, :neutral, :repeat, :debounce, :kept]
  @enforce_keys @kept
  defstruct @enforce_keys ++
              [last: nil, row: nil, sent: nil, held: 0, cooldown: 0, airborne?: nil] ++
              [owed: [], past: [], gaps: [], pending: %{}]

  @typedoc """
  `last` and `row` are the number and the packed row of the newest frame, `sent` its choices and input. `past` has the
  latest frames, newest first, each with the player before it. `owed` are frames that the memory lacks, newest first.
  `gaps` are numbers that were skipped. `pending` has the rows by number that the memory must still put in their places.
  """
  @type t :: %__MODULE__{}

  @typedoc "The choices by head that were sent, and the action, if the policy made one."
  @type sent :: {map | nil, Action.t() | nil}

  @doc """
  Begins a game. Options: `:action_repeat`, `:jump_debounce`, `:neutral` (choices by head, or nil) and `:rollback` (frames).
  """
  @spec new(Session.t(), keyword) :: t
  def new(%Session{spec: spec} = session, opts) do
    %__MODULE__{
      session: session,
      melee?: melee?(spec),
      neutral: opts[:neutral] || neutral(spec),
      repeat: opts[:action_repeat] || 1,
      debounce: opts[:jump_debounce] || 0,
      kept: opts[:rollback] || 0
    }
  end

  @doc "Whether a policy reads frames of Melee and chooses inputs of a controller."
  @spec melee?(Spec.t()) :: boolean
  def melee?(%Spec{embedding: {:melee, _options}} = spec), do: Spec.controller?(spec)
  def melee?(_spec), do: false

  @doc "The neutral choices of a controller, or nil for other heads."
  @spec neutral(Spec.t()) :: map | nil
  def neutral(%Spec{heads: heads} = spec) do
    if Spec.controller?(spec) do
      Map.new(heads, fn
        %{name: name, kind: {:bernoulli, bits}} -> {name, List.duplicate(0, bits)}
        %{name: :shoulder} -> {:shoulder, 0}
        %{name: name, kind: {:categorical, classes}} -> {name, div(classes - 1, 2)}
      end)
    end
  end

  @doc "How the number of a frame stands to the frames before it."
  @spec place(t, integer, binary) :: :next | :same | :gap | :again | :old
  def place(%__MODULE__{last: nil}, _number, _row), do: :next
  def place(%__MODULE__{last: last}, number, _row) when number == last + 1, do: :next
  def place(%__MODULE__{last: last}, number, _row) when number > last + 1, do: :gap

  def place(%__MODULE__{pending: %{} = pending}, number, row)
      when :erlang.map_get(number, pending) == row,
      do: :same

  def place(%__MODULE__{last: last, row: row, pending: pending}, last, row)
      when not is_map_key(pending, last),
      do: :same

  def place(%__MODULE__{gaps: gaps} = player, number, _row) do
    cond do
      number in gaps -> :gap
      is_map_key(player.pending, number) -> :again
      Enum.any?(player.past, fn {at, _before, _row, _sent} -> at == number end) -> :again
      true -> :old
    end
  end

  @doc """
  Decides for a frame that is newer than all before. Options are those of `Sconce.Session.act/3`.

  The result is `{:ok, sent, player}`, `{:late, error, player}` if the deadline has passed (`late/3` says what was sent
  instead), or `{:error, error, player}`.
  """
  @spec decide(t, integer, binary, keyword) ::
          {:ok, sent, t} | {:late, Error.t(), t} | {:error, Error.t(), t}
  def decide(%__MODULE__{} = player, number, row, opts) do
    case settle(player) do
      {:ok, player} -> chosen(player, number, row, opts)
      {:error, error, player} -> refused(player, error)
    end
  end

  defp chosen(%{held: held, repeat: repeat, sent: {choices, _}} = player, number, row, _)
       when held > 0 and held < repeat and choices != nil do
    with {:ok, _action} <- step(player, number, row, choices) do
      cooldown = max(player.cooldown - since(player, number), 0)
      after_it = remember(player, number, row, player.sent)
      {:ok, player.sent, %{after_it | held: held + 1, cooldown: cooldown}}
    else
      {:error, error} -> refused(player, error)
    end
  end

  defp chosen(player, number, row, opts) do
    ground = ground(player, row)
    armed = armed(player, ground, number)
    opts = if mask = mask(armed, ground), do: [mask: mask] ++ opts, else: opts

    case Session.act(player.session, row, [game_frame: number] ++ opts) do
      {:ok, action} ->
        sent = {action.choices, action}
        after_it = remember(player, number, row, sent)

        {:ok, sent,
         %{after_it | held: 1, cooldown: released(armed, sent), airborne?: airborne?(ground)}}

      {:error, error} ->
        refused(player, error)
    end
  end

  defp refused(player, %Error{kind: kind} = error) when kind in [:deadline, :busy],
    do: {:late, error, player}

  defp refused(player, error), do: {:error, error, player}

  @doc "Takes a frame that was answered by the neutral input. The memory steps over it before the next decision."
  @spec late(t, integer, binary) :: {sent, t}
  def late(%__MODULE__{} = player, number, row) do
    sent = {player.neutral, nil}
    player = %{remember(player, number, row, sent) | held: 0}
    {sent, if(player.neutral, do: owe(player, number, row), else: player)}
  end

  defp owe(%{owed: owed} = player, number, row) when length(owed) < @owed,
    do: %{player | owed: [{number, row} | owed]}

  defp owe(player, _number, _row) do
    _ = Session.reset(player.session)
    %{player | owed: [], past: []}
  end

  @doc """
  Takes back a decision that was made too late, and its frame as one that was answered by the neutral input. `before` is the
  player before the decision; what it owed has entered the memory since.
  """
  @spec take_back(t, t, integer, binary) :: {sent, t}
  def take_back(%__MODULE__{} = before, %__MODULE__{} = made, number, row) do
    case before.neutral && Session.rollback(made.session, number) do
      {:ok, _count} -> late(%{before | owed: []}, number, row)
      # The decision stays in the memory.
      _kept -> {{made.neutral, nil}, %{made | sent: {made.neutral, nil}}}
    end
  end

  @doc """
  Takes a frame that came after later ones (`:gap`), or a new version of one that was decided (`:again`). `correct/1` puts
  it in its place.
  """
  @spec note(t, integer, binary) :: t
  def note(%__MODULE__{pending: pending, gaps: gaps} = player, number, row),
    do: %{player | pending: Map.put(pending, number, row), gaps: List.delete(gaps, number)}

  @doc "The number of the oldest frame that `correct/1` would put in its place, or nil."
  @spec oldest_noted(t) :: integer | nil
  def oldest_noted(%__MODULE__{pending: pending}) when pending == %{}, do: nil
  def oldest_noted(%__MODULE__{pending: pending}), do: pending |> Map.keys() |> Enum.min()

  @doc """
  Puts the frames of `note/3` in their places, all in one pass over the memory. Frames keep the choices that were sent.
  """
  @spec correct(t) :: {:ok, t} | {:error, Error.t(), t}
  def correct(%__MODULE__{pending: pending} = player) do
    first = oldest_noted(player)

    with {:ok, player} <- settle(%{player | pending: %{}}),
         taken = taken(player, first),
         {:ok, before, sent} <- back_to(player, first) do
      again(before, merged(taken, pending, sent))
    else
      # The session is in use, and may take the frames later.
      {:error, %Error{kind: kind} = error, player} when kind in [:busy, :deadline] ->
        {:error, error, %{player | pending: pending}}

      error ->
        error
    end
  end

  @doc "Forgets the frames of `note/3`."
  @spec forget(t) :: t
  def forget(%__MODULE__{} = player), do: %{player | pending: %{}}

  # The frames that were taken back with their new rows, and the late ones between them, which were answered by the input
  # of the frame before.
  defp merged(taken, pending, sent) do
    late = for {at, row} <- pending, not List.keymember?(taken, at, 0), do: {at, row, nil, %{}}

    {frames, _sent} =
      Enum.sort_by(taken ++ late, &elem(&1, 0))
      |> Enum.map_reduce(sent, fn {at, row, own, counts}, before ->
        sent = own || before
        {{at, Map.get(pending, at, row), sent, counts}, sent}
      end)

    frames
  end

  # The frames from `number` on, oldest first, each with the counts of the player after it.
  defp taken(player, number) do
    {frames, _oldest} =
      Enum.map_reduce(player.past, player, fn {at, before, row, sent}, after_it ->
        counts = Map.take(after_it, [:held, :cooldown, :airborne?])
        {{at, row, sent, counts}, before}
      end)

    frames |> Enum.filter(&(elem(&1, 0) >= number)) |> Enum.reverse()
  end

  defp again(player, frames) do
    Enum.reduce_while(frames, {:ok, player}, fn {at, row, {choices, _} = sent, counts},
                                                {:ok, player} ->
      with true <- choices != nil,
           {:error, error} <- step(player, at, row, choices) do
        {:halt, {:error, error, player}}
      else
        _stepped ->
          {:cont, {:ok, player |> remember(at, row, sent) |> Map.merge(Map.new(counts))}}
      end
    end)
  end

  # The player before frame `number`, and what was sent at that frame: that of the frame before it, if it was skipped.
  defp back_to(player, number) do
    {taken, kept} =
      Enum.split_while(player.past, fn {at, _before, _row, _sent} -> at >= number end)

    case List.last(taken) do
      nil ->
        {:ok, player, player.sent || {player.neutral, nil}}

      {at, before, _row, sent} ->
        sent = if at == number, do: sent, else: before.sent || sent

        case Session.rollback(player.session, number) do
          {:ok, _count} -> {:ok, %{before | past: kept, gaps: player.gaps}, sent}
          {:error, error} -> {:error, error, player}
        end
    end
  end

  @doc "Begins a new game with an empty memory."
  @spec reset(t) :: {:ok, t} | {:error, Error.t()}
  def reset(%__MODULE__{session: session} = player),
    do: with(:ok <- Session.reset(session), do: {:ok, blank(player)})

  @doc "The player before any frame, whose session may be gone."
  @spec blank(t) :: t
  def blank(%__MODULE__{} = player),
    do: struct!(__MODULE__, Map.take(player, @kept))

  # Steps the memory over the frames that it lacks. A frame that the policy refuses is left out, so that it fails once.
  defp settle(%{owed: []} = player), do: {:ok, player}

  defp settle(%{owed: owed} = player) do
    [{number, row} | rest] = Enum.reverse(owed)

    case step(player, number, row, player.neutral) do
      {:ok, _action} ->
        settle(%{player | owed: Enum.reverse(rest)})

      {:error, %Error{kind: kind} = error} when kind in [:deadline, :busy] ->
        {:error, error, player}

      {:error, error} ->
        {:error, error, %{player | owed: Enum.reverse(rest)}}
    end
  end

  defp step(player, number, row, choices),
    do: Session.act(player.session, row, choices: choices, game_frame: number)

  defp remember(player, number, row, sent) do
    before = %{player | past: [], gaps: [], owed: []}
    past = Enum.take([{number, before, row, sent} | player.past], player.kept)
    gaps = Enum.uniq(new_gaps(player, number) ++ List.delete(player.gaps, number))
    %{player | last: number, row: row, sent: sent, past: past, gaps: Enum.take(gaps, player.kept)}
  end

  defp new_gaps(%{last: last, kept: kept}, number) when is_integer(last) and number > last + 1,
    do: Enum.to_list((number - 1)..max(last + 1, number - kept - 1)//-1)

  defp new_gaps(_player, _number), do: []

  # Whether the own player is on the ground, and in jumpsquat, in a frame of Melee; nil in another game.
  defp ground(%{melee?: true, debounce: debounce}, row) when debounce > 0 do
    {action, on_ground?} = Row.ground(row)
    {on_ground?, action == @jumpsquat}
  end

  defp ground(_player, _row), do: nil

  defp airborne?(nil), do: nil
  defp airborne?({on_ground?, _squat?}), do: not on_ground?

  # The cooldown counts game frames. It begins in jumpsquat and at the frame that leaves the ground, before the frames since
  # the last decision are taken off, as in ExPhil.
  defp armed(player, nil, _number), do: player

  defp armed(%{debounce: debounce} = player, {on_ground?, squat?}, number) do
    lift_off? = not on_ground? and player.airborne? == false
    cooldown = if squat? or lift_off?, do: max(player.cooldown, debounce), else: player.cooldown
    %{player | cooldown: max(cooldown - since(player, number), 0)}
  end

  defp since(%{last: nil}, _number), do: 1
  defp since(%{last: last}, number), do: max(number - last, 0)

  # In the air, and in jumpsquat, a jump button that is not held may not be pressed while the cooldown runs or while the
  # other one is held. A held button may be held on.
  defp mask(_player, nil), do: nil
  defp mask(_player, {true, false}), do: nil

  defp mask(%{cooldown: cooldown, sent: sent}, _ground) do
    held = for name <- @jump, pressed?(sent, name), do: name

    if cooldown > 0 or held != [] do
      barred = for name <- @jump, name not in held, do: {name, false}
      if barred != [], do: %{buttons: Map.new(barred)}
    end
  end

  # The cooldown begins anew when a jump button is released.
  defp released(%{debounce: 0}, _sent), do: 0

  defp released(player, sent) do
    released? = Enum.any?(@jump, &(pressed?(player.sent, &1) and not pressed?(sent, &1)))
    if released?, do: player.debounce, else: player.cooldown
  end

  defp pressed?({_choices, %Action{buttons: %{} = buttons}}, name),
    do: Map.get(buttons, name, false)

  defp pressed?(_sent, _name), do: false
end

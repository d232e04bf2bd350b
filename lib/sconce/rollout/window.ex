defmodule Sconce.Rollout.Window do
  @moduledoc false
  # Segments on their way to another node: cut into messages by bytes, with a limit of messages without an answer.
  #
  # Segments are numbered in order. An answer has the number of the first segment that the receiver lacks, and stands for all
  # before it. After an answer that lacks a part of its message, or none at all, everything from there goes again. So the
  # order is kept, each segment is taken once, and memory is bounded by `room/1`.

  @enforce_keys [:max_bytes, :in_flight]
  defstruct @enforce_keys ++ [held: :queue.new(), bytes: 0, base: 0, next: 0, flights: 0]

  @typedoc """
  `held` are the segments from the number `base` on, in all `bytes`; those from `next` on are not sent yet. `flights` is the
  number of messages without an answer.
  """
  @type t :: %__MODULE__{}

  @doc "Returns an empty window of messages of about `max_bytes`, at most `in_flight` of them without an answer."
  @spec new(pos_integer, pos_integer) :: t
  def new(max_bytes, in_flight), do: %__MODULE__{max_bytes: max_bytes, in_flight: in_flight}

  @doc "Bytes of segments that may be added."
  @spec room(t) :: non_neg_integer
  def room(%{max_bytes: most, in_flight: flights, bytes: bytes}),
    do: max(most * flights - bytes, 0)

  @doc "Number of segments that the receiver has not confirmed."
  @spec held(t) :: non_neg_integer
  def held(%{held: held}), do: :queue.len(held)

  @doc "Adds segments at the end."
  @spec add(t, [binary]) :: t
  def add(window, segments) do
    Enum.reduce(segments, window, fn segment, window ->
      bytes = window.bytes + byte_size(segment)
      %{window | held: :queue.in(segment, window.held), bytes: bytes}
    end)
  end

  @doc """
  Returns the next message, `{first, segments}`, or nil if there is none now. Without `flush?`, a message that is not full
  waits.
  """
  @spec next(t, boolean) :: {{non_neg_integer, [binary]}, t} | nil
  def next(%{flights: flights, in_flight: flights}, _flush?), do: nil

  def next(%{held: held, base: base, next: next, max_bytes: most} = window, flush?) do
    unsent = held |> :queue.to_list() |> Enum.drop(next - base)

    case message(unsent, most, []) do
      {[], _full?} ->
        nil

      {_part, false} when not flush? ->
        nil

      {segments, _full?} ->
        after_it = next + length(segments)
        {{next, segments}, %{window | next: after_it, flights: window.flights + 1}}
    end
  end

  # At least one segment, else as many as fit.
  defp message([segment | rest], left, []),
    do: message(rest, left - byte_size(segment), [segment])

  defp message([segment | rest], left, taken) when byte_size(segment) <= left,
    do: message(rest, left - byte_size(segment), [segment | taken])

  defp message(rest, left, taken), do: {Enum.reverse(taken), rest != [] or left <= 0}

  @doc "Takes the answer to a message: the receiver has all segments before `number`."
  @spec answered(t, non_neg_integer) :: t
  def answered(%{base: base, next: next} = window, number) do
    confirmed = number |> max(base) |> min(next)
    drop(%{window | flights: max(window.flights - 1, 0)}, confirmed - base)
  end

  defp drop(window, 0), do: window

  defp drop(window, count) do
    {{:value, segment}, held} = :queue.out(window.held)
    bytes = window.bytes - byte_size(segment)
    drop(%{window | held: held, bytes: bytes, base: window.base + 1}, count - 1)
  end

  @doc "Sends everything without a confirmation again."
  @spec back(t) :: t
  def back(window), do: %{window | next: window.base, flights: 0}

  @doc """
  The receiver's side: the part of a message that is new, and the number of its first segment. `expected` is the number that
  the receiver lacks, nil for a sender that it does not know: then it is `base`, the oldest one without a confirmation.
  """
  @spec received(non_neg_integer | nil, non_neg_integer, non_neg_integer, [binary]) ::
          {[binary], non_neg_integer}
  def received(expected, base, first, segments) do
    expected = expected || base

    # After a gap the sender goes back.
    if first > expected,
      do: {[], expected},
      else: {Enum.drop(segments, expected - first), expected}
  end
end

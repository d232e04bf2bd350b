defmodule Sconce.Bot.Delay do
  @moduledoc false
  # Measures after how many frames a bot's inputs show in the game, from the changes of its inputs.
  #
  # An input has a signature: the third of the main stick's x axis, and buttons. The lag is the one by which most changes of
  # the sent signatures reappear in the reported ones.

  # Most frames of lag, and changes that a measurement needs.
  @most 60
  @changes 24
  # Share of changes that must reappear, and its distance from that of every other lag.
  @enough 0.9
  @clearly 0.2
  # The probe is a maximal sequence of a shift register of 6 bits (x^6 + x^5 + 1), which resembles none of its shifts.
  @probe Stream.unfold(1, fn register ->
           bit = rem(Bitwise.bxor(register, Bitwise.bsr(register, 1)), 2)
           {rem(register, 2), Bitwise.bor(Bitwise.bsr(register, 1), Bitwise.bsl(bit, 5))}
         end)
         |> Enum.take(63)
         |> List.to_tuple()
  # Frames of the countdown with a probe. Its inputs have no effect, and the last ones are over before players have control.
  @first -120
  @last -58

  defstruct sent: %{}, seen: %{}

  @type t :: %__MODULE__{}

  @doc "Begins a measurement."
  def new, do: %__MODULE__{}

  @doc "The position of the main stick, as {x, y}, that probes frame `number`; nil after the probe."
  def probe(number) when number in @first..@last,
    do: {elem(@probe, rem(number - @first, 63)) * 1.0, 0.5}

  def probe(_number), do: nil

  @doc "Takes the input that was sent for a frame, and the one that the game reported in it, or nil."
  def add(%__MODULE__{} = delay, number, sent, seen) do
    %__MODULE__{sent: put(delay.sent, number, sent), seen: put(delay.seen, number, seen)}
  end

  defp put(map, _number, nil), do: map
  defp put(map, number, input), do: Map.put(map, number, signature(input))

  defp signature(%{main_stick: %{x: x}, buttons: buttons}),
    do:
      {third(x), Map.get(buttons, :a), Map.get(buttons, :b), Map.get(buttons, :x),
       Map.get(buttons, :y)}

  defp third(x) when x < 0.34, do: -1
  defp third(x) when x > 0.66, do: 1
  defp third(_x), do: 0

  @doc "The delay in frames of a session (0: an input shows in the next frame), or nil while it is not known."
  @spec measure(t) :: non_neg_integer | nil
  def measure(%__MODULE__{sent: sent, seen: seen}) do
    changes =
      for {number, now} <- sent,
          before = sent[number - 1],
          before != now,
          do: {number, before, now}

    shares = for lag <- 1..@most, met = met(changes, seen, lag), met != nil, do: {met, lag}

    case Enum.sort(shares, :desc) do
      [{share, lag}, {next, _} | _] when share >= @enough and share - next >= @clearly -> lag - 1
      _unclear -> nil
    end
  end

  # The share of changes that show after `lag` frames; nil if too few could.
  defp met(changes, seen, lag) do
    could =
      for {number, before, now} <- changes,
          was = seen[number + lag - 1],
          is = seen[number + lag],
          do: {was == before and is == now}

    if length(could) >= @changes, do: Enum.count(could, &elem(&1, 0)) / length(could)
  end
end

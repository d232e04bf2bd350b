defmodule Sconce.Report.Fold do
  @moduledoc false
  # One step of a report: both players after one frame. A side is one player as the victim of the other one: it holds the
  # conversions of the opponent, and the player's own stocks.

  alias Sconce.Report.States

  # Frames that a victim is in control before a conversion ends, 0.75 seconds.
  @reset_frames 45

  # `now` is `{percent, action, action_frame, stocks, character}` after the last frame, or nil before the first one.
  # `counter` counts the frames since the victim was in control, and is 0 while it was not. `hit_action` is the
  # attacker's action state at the last hit, and nil once the attacker has left it: further hits belong to the same move.
  # Lists are reversed.
  defstruct now: nil,
            character: nil,
            damage_taken: 0.0,
            counter: 0,
            hit_action: nil,
            open: nil,
            conversions: [],
            stock: nil,
            stocks: [],
            line: []

  @doc "Returns both sides after a frame that is `gap` frames after the last one."
  def step({a, b}, {now_a, now_b}, frame, gap) do
    started_a = starts?(a, now_a)
    started_b = starts?(b, now_b)
    a_after = side(a, now_a, b.now, now_b, frame, gap)
    b_after = side(b, now_b, a.now, now_a, frame, gap)

    if started_a or started_b do
      trade? = started_a and started_b

      {typed(a_after, started_a, trade?, b_after.open),
       typed(b_after, started_b, trade?, a_after.open)}
    else
      {a_after, b_after}
    end
  end

  defp starts?(%{open: nil}, now), do: hurt?(now)
  defp starts?(_side, _now), do: false

  defp hurt?({_percent, action, _age, _stocks, _character}),
    do: States.class(action) in [:hit, :grabbed, :captured]

  # `against` is the conversion of the victim over the attacker that still runs.
  defp typed(side, false, _trade?, _against), do: side
  defp typed(side, true, true, _against), do: put_opening(side, :trade)
  defp typed(side, true, false, nil), do: put_opening(side, :neutral_win)
  defp typed(side, true, false, _against), do: put_opening(side, :counter_attack)

  # A conversion that ended on the frame of its start is already in the list.
  defp put_opening(%{open: nil, conversions: [first | rest]} = side, opening),
    do: %{side | conversions: [%{first | opening: opening} | rest]}

  defp put_opening(%{open: open} = side, opening), do: %{side | open: %{open | opening: opening}}

  # The first frame has no frame before it: no damage and no loss can be seen.
  defp side(%{now: nil} = side, now, _before, attacker, frame, gap) do
    {percent, _action, _age, _stocks, character} = now
    side = %{side | now: now, character: character, line: [{frame, percent}]}
    changed(side, now, now, attacker, attacker, frame, gap)
  end

  defp side(%{now: before} = side, now, attacker_before, attacker, frame, gap) do
    side = left(side, attacker_before, attacker)

    # Most frames change nothing but the action state.
    if side.open == nil and side.stock != nil and elem(before, 0) == elem(now, 0) and
         elem(before, 3) == elem(now, 3) and not hurt?(now),
       do: %{side | now: now},
       else: changed(side, before, now, attacker_before, attacker, frame, gap)
  end

  defp left(%{hit_action: nil} = side, _before, _attacker), do: side

  defp left(side, {_, _, age_before, _, _}, {_, action, age, _, _}) do
    if action != side.hit_action or age < age_before, do: %{side | hit_action: nil}, else: side
  end

  defp changed(side, before, now, attacker_before, attacker, frame, gap) do
    gain = max(elem(now, 0) - elem(before, 0), 0.0)
    lost? = elem(now, 3) < elem(before, 3)

    side
    |> hit(hurt?(now), gain, before, now, {attacker_before, attacker}, frame)
    |> advanced(lost?, before, now, frame, gap)
    |> stock(lost?, before, now, frame)
    |> lined(before, now, frame)
    |> Map.merge(%{now: now, damage_taken: side.damage_taken + gain})
  end

  defp hit(side, false, _gain, _before, _now, _attacker, _frame), do: side

  defp hit(%{open: nil} = side, true, gain, before, now, attacker, frame) do
    open = %{
      opening: nil,
      opener: move(attacker),
      start: frame,
      end: nil,
      start_percent: elem(before, 0),
      end_percent: nil,
      damage: 0.0,
      moves: [],
      kill: false
    }

    hit(%{side | open: open, counter: 0}, true, gain, before, now, attacker, frame)
  end

  defp hit(side, true, gain, _before, _now, _attacker, _frame) when gain == 0.0,
    do: %{side | counter: 0}

  defp hit(%{open: open} = side, true, gain, _before, _now, attacker, frame) do
    moves = moved(open.moves, side.hit_action, gain, attacker, frame)
    {{_, action_before, _, _, _}, _now} = attacker
    open = %{open | moves: moves, damage: open.damage + gain}
    %{side | open: open, counter: 0, hit_action: action_before}
  end

  # Hits without a change of the attacker's action state belong to one move.
  defp moved([move | rest], hit_action, gain, _attacker, _frame) when hit_action != nil,
    do: [%{move | hits: move.hits + 1, damage: move.damage + gain} | rest]

  defp moved(moves, _hit_action, gain, attacker, frame),
    do: [%{move: move(attacker), frame: frame, hits: 1, damage: gain} | moves]

  # In a trade the attacker has already left the attack.
  defp move({{_, action_before, _, _, _}, {_, action, _, _, character}}) do
    other = States.other()

    case States.move(action, character) do
      ^other -> States.move(action_before, character)
      move -> move
    end
  end

  defp advanced(%{open: nil} = side, _lost?, _before, _now, _frame, _gap), do: side

  defp advanced(side, true, before, _now, frame, _gap), do: ended(side, true, before, frame)

  defp advanced(side, false, before, now, frame, gap) do
    counter = counted(side.counter, now, gap)
    side = %{side | counter: counter}
    if counter > @reset_frames, do: ended(side, false, before, frame), else: side
  end

  defp counted(0, {_percent, action, _age, _stocks, _character}, _gap),
    do: if(States.class(action) == :control, do: 1, else: 0)

  defp counted(counter, _now, gap), do: counter + gap

  defp ended(%{open: open} = side, kill?, before, frame) do
    open = %{open | end: frame, end_percent: elem(before, 0), kill: kill?}
    %{side | open: nil, counter: 0, conversions: [open | side.conversions]}
  end

  defp stock(%{stock: nil} = side, false, _before, now, frame) do
    {percent, action, _age, stocks, _character} = now

    if stocks > 0 and States.class(action) != :dying,
      do: %{side | stock: %{count: stocks, start: frame, start_percent: percent}},
      else: side
  end

  defp stock(side, false, _before, _now, _frame), do: side

  defp stock(side, true, before, _now, frame) do
    {percent, _action, _age, count, _character} = before
    stock = side.stock || %{count: count, start: frame, start_percent: percent}
    cause = if killed?(side.conversions, frame), do: :kill, else: :self_destruct
    stock = Map.merge(stock, %{end: frame, end_percent: percent, lost: cause})
    %{side | stock: nil, stocks: [stock | side.stocks]}
  end

  defp killed?([%{kill: true, end: frame} | _rest], frame), do: true
  defp killed?(_conversions, _frame), do: false

  defp lined(side, before, now, frame) do
    if elem(before, 0) == elem(now, 0),
      do: side,
      else: %{side | line: [{frame, elem(now, 0)} | side.line]}
  end

  @doc "Returns the conversions over a side's player, the oldest first. A conversion that still runs has no end."
  def conversions(%{open: nil} = side),
    do: side.conversions |> Enum.reverse() |> Enum.map(&whole/1)

  def conversions(%{open: open, now: now} = side) do
    open = %{open | end_percent: elem(now, 0)}
    [open | side.conversions] |> Enum.reverse() |> Enum.map(&whole/1)
  end

  defp whole(conversion), do: %{conversion | moves: Enum.reverse(conversion.moves)}

  @doc "Returns the stocks of a side's player, the oldest first. The current stock has no end."
  def stocks(%{stock: nil} = side), do: Enum.reverse(side.stocks)

  def stocks(%{stock: stock, now: now} = side) do
    current = Map.merge(stock, %{end: nil, end_percent: elem(now, 0), lost: nil})
    Enum.reverse([current | side.stocks])
  end
end

defmodule Sconce.Env.Drawing do
  @moduledoc false
  # Draws the states of environments as shapes, in the environment's own units with y upwards.
  #
  # A shape is `{kind, numbers, color}`: `:line` from x, y to x, y; `:disc` around x, y with a radius; `:box` from the
  # lower left corner x, y with width and height. All frames of an environment have the same kinds of shapes in the same
  # order, so that an animation changes numbers only.

  alias Sconce.Env.Billiards.Picture

  @ground "#94a3b8"
  @body "#334155"
  @first "#2563eb"
  @second "#ea580c"
  @goal "#16a34a"
  @force "#db2777"

  @type shape :: {:line | :disc | :box, [number], String.t()}

  # The part of the world that is visible, as {left, bottom, right, top}, and milliseconds of a step.
  @views %{
    cart_pole: {{-2.7, -0.3, 2.7, 1.5}, 20},
    cart_pole_velocity_less: {{-2.7, -0.3, 2.7, 1.5}, 20},
    pixel_cart_pole: {{-2.7, -0.3, 2.7, 1.5}, 20},
    mountain_car: {{-1.25, -0.05, 0.65, 1.2}, 33},
    mountain_car_continuous: {{-1.25, -0.05, 0.65, 1.2}, 33},
    acrobot: {{-2.2, -2.2, 2.2, 2.2}, 66},
    pendulum: {{-1.5, -1.5, 1.5, 1.3}, 50},
    duel: {{-1.15, -0.1, 1.15, 0.85}, 33},
    billiards: {{-1.4, -0.8, 1.4, 0.75}, 1000},
    billiards_published: {{-1.4, -0.8, 1.4, 0.75}, 1000}
  }

  # Length of the pole, from its joint.
  @pole 1.0
  @cart_width 0.5
  @cart_height 0.25
  # Duel: frames in which each act winds up, see native/env/src/worlds/duel.rs.
  @strike 1
  @guard 2
  @throw 3
  @strike_frames 5
  @throw_frames 8

  # Milliseconds of a step of a world that is a module.
  @pace_ms 50

  @doc "Returns the visible part of the world of a trace, and the milliseconds of a step."
  @spec view(map) :: {{number, number, number, number}, pos_integer}
  def view(%{env: name, states: [first | _]}) do
    Map.get_lazy(@views, name, fn -> {{-0.5, -1.1, length(first) - 0.5, 1.1}, @pace_ms} end)
  end

  @doc "Returns the shapes of each state of a trace."
  @spec frames(map) :: [[shape]]
  def frames(%{env: name, states: states}) when not is_map_key(@views, name) do
    largest = states |> Enum.concat() |> Enum.map(&abs/1) |> Enum.max(fn -> 0 end) |> max(1.0e-9)
    for state <- states, do: bars(state, largest)
  end

  def frames(%{env: name, states: states, inputs: inputs}) do
    # The last state has no input of its own.
    inputs = inputs ++ Enum.take(inputs, -1)
    for {state, input} <- Enum.zip(states, inputs), do: shapes(name, state, input)
  end

  @doc "Returns the shapes of a state and of the input that is given in it."
  @spec shapes(atom, [number], [number]) :: [shape]
  def shapes(name, [x, _speed, angle, _spin], [push | _])
      when name in [:cart_pole, :cart_pole_velocity_less, :pixel_cart_pole] do
    side = if push == 1, do: 1, else: -1
    edge = x + side * @cart_width / 2
    {tip_x, tip_y} = {x + @pole * :math.sin(angle), @cart_height + @pole * :math.cos(angle)}

    [
      {:line, [-2.7, 0, 2.7, 0], @ground},
      {:line, [-2.4, -0.1, -2.4, 0.1], @ground},
      {:line, [2.4, -0.1, 2.4, 0.1], @ground},
      {:box, [x - @cart_width / 2, 0, @cart_width, @cart_height], @body},
      {:line, [x, @cart_height, tip_x, tip_y], @second},
      {:disc, [tip_x, tip_y, 0.05], @second},
      {:line, [edge, @cart_height / 2, edge + side * 0.2, @cart_height / 2], @force}
    ]
  end

  def shapes(:mountain_car, [x, _speed], [action | _]), do: valley(x, action - 1, 0.5)

  def shapes(:mountain_car_continuous, [x, _speed], [force | _]),
    do: valley(x, bound(force), 0.45)

  def shapes(:acrobot, [first, second, _, _], [action | _]) do
    {joint_x, joint_y} = {:math.sin(first), -:math.cos(first)}
    both = first + second
    {tip_x, tip_y} = {joint_x + :math.sin(both), joint_y - :math.cos(both)}

    [
      {:line, [-2.2, 1, 2.2, 1], @goal},
      {:line, [0, 0, joint_x, joint_y], @body},
      {:line, [joint_x, joint_y, tip_x, tip_y], @second},
      {:disc, [0, 0, 0.08], @body},
      {:disc, [joint_x, joint_y, 0.08], @second},
      {:line, [joint_x, joint_y, joint_x + 0.4 * (action - 1), joint_y], @force}
    ]
  end

  def shapes(:pendulum, [angle, _speed], [torque | _]) do
    {tip_x, tip_y} = {-:math.sin(angle), :math.cos(angle)}

    [
      {:line, [0, 1.05, 0, 1.2], @goal},
      {:line, [0, 0, tip_x, tip_y], @second},
      {:disc, [0, 0, 0.06], @body},
      {:disc, [tip_x, tip_y, 0.08], @second},
      {:line, [0, -1.35, -bound(torque / 2), -1.35], @force}
    ]
  end

  def shapes(:duel, state, _inputs) do
    {first, [_ | _] = rest} = Enum.split(state, 7)

    [{:line, [-1.15, 0, 1.15, 0], @ground}] ++
      fencer(first, 1, @first) ++ fencer(rest, -1, @second)
  end

  def shapes(name, state, [angle, power | _spin])
      when name in [:billiards, :billiards_published] do
    [x, y] = [Enum.at(state, 0), Enum.at(state, 8)]
    turn = bound(angle) * :math.pi()
    way = 0.1 + 0.5 * bound(max(power, 0))
    cue = {:line, [x, y, x + way * :math.cos(turn), y + way * :math.sin(turn)], @force}
    balls = for ball <- 0..7, do: ball(state, ball)
    Picture.edges(@ground) ++ Picture.pockets(@body) ++ [cue] ++ balls
  end

  # Balls that fell lie in a row below the table.
  defp ball(state, 0),
    do: {:disc, [Enum.at(state, 0), Enum.at(state, 8), Picture.radius(0)], @first}

  defp ball(state, ball) do
    if Enum.at(state, 15 + ball) == 1,
      do:
        {:disc, [Enum.at(state, ball), Enum.at(state, 8 + ball), Picture.radius(ball)], @second},
      else: {:disc, [-1.2 + 0.1 * ball, -0.74, Picture.radius(ball)], @second}
  end

  # The numbers of an observation, for a world that is a module.
  defp bars(state, largest) do
    [{:line, [-0.5, 0, length(state) - 0.5, 0], @ground}] ++
      for {number, i} <- Enum.with_index(state) do
        height = number / largest
        {:box, [i - 0.35, min(height, 0), 0.7, abs(height)], @first}
      end
  end

  # The hill as lines, the flag at the goal, the car, and its force.
  defp valley(x, force, goal) do
    points = for i <- 0..30, do: -1.2 + 1.8 * i / 30

    hill =
      for {a, b} <- Enum.zip(points, tl(points)), do: {:line, [a, hill(a), b, hill(b)], @ground}

    y = hill(x) + 0.05

    hill ++
      [
        {:line, [goal, hill(goal), goal, hill(goal) + 0.15], @goal},
        {:line, [goal, hill(goal) + 0.15, goal + 0.07, hill(goal) + 0.12], @goal},
        {:disc, [x, y, 0.04], @second},
        {:line, [x, y + 0.08, x + 0.12 * force, y + 0.08], @force}
      ]
  end

  defp hill(x), do: 0.45 * :math.sin(3 * x) + 0.55

  # A player: body, head, weapon, shield, grasp, stamina and touches. Positions are in the player's own view.
  defp fencer([position, _speed, stamina, act, remaining, _shown, touches | _], side, color) do
    x = side * position
    strike = if act == @strike, do: 0.08 + 0.2 * wound(remaining, @strike_frames), else: 0.06
    grasp = if act == @throw, do: 0.05 + 0.15 * wound(remaining, @throw_frames), else: 0
    shield = if act == @guard, do: 0.32, else: 0
    bar = side * 1.05

    [
      {:line, [x, 0, x, 0.36], color},
      {:disc, [x, 0.42, 0.05], color},
      {:line, [x, 0.27, x + side * strike, 0.27], @force},
      {:line, [x + side * 0.09, 0.08, x + side * 0.09, 0.08 + shield], @goal},
      {:line, [x, 0.34, x + side * grasp, 0.34 + grasp / 2], @force},
      {:line, [x, 0.2, x + side * grasp, 0.2 + grasp / 2], @force},
      {:box, [if(side == 1, do: -1.05, else: 1.05 - 0.6 * stamina), 0.62, 0.6 * stamina, 0.04],
       color}
    ] ++ for(i <- 0..2, do: {:disc, [-bar + side * 0.1 * i, 0.75, dot(touches > i)], color})
  end

  defp wound(remaining, frames), do: 1 - min(remaining / frames, 1)

  defp dot(true), do: 0.035
  defp dot(false), do: 0.008

  defp bound(value), do: value |> max(-1) |> min(1)
end

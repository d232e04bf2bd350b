# The part of libmelee_ex that a bot meets: states, and processes for the console and a controller.

defmodule Melee.Position do
  @moduledoc false
  defstruct [:x, :y]
end

defmodule Melee.ControllerState do
  @moduledoc false
  @buttons [:a, :b, :x, :y, :z, :l, :r, :start, :d_up, :d_down, :d_left, :d_right]
  defstruct button: Map.new(@buttons, &{&1, false}),
            main_stick: {0.5, 0.5},
            c_stick: {0.5, 0.5},
            l_shoulder: 0.0,
            r_shoulder: 0.0
end

defmodule Melee.PlayerState do
  @moduledoc false
  defstruct [:character, :position, :percent, :stock, :facing, :action, :action_frame, :nana] ++
              [:invulnerable, :jumps_left, :on_ground, :shield_strength, :hitstun_frames_left] ++
              [:speed_air_x_self, :speed_ground_x_self, :speed_y_self, :speed_x_attack] ++
              [:speed_y_attack, controller_state: %Melee.ControllerState{}]
end

defmodule Melee.GameState do
  @moduledoc false
  defstruct [:frame, :stage, :menu_state, :players, :distance, projectiles: []]
end

defmodule Melee.Console do
  @moduledoc false
  # A console plays the frames of the app's match, and then has none.

  def start_link(frames), do: Agent.start_link(fn -> {0, frames} end)

  def step(console) do
    Agent.get_and_update(console, fn
      {frames, frames} -> {nil, {frames, frames}}
      {number, frames} -> {{:ok, state(number)}, {number + 1, frames}}
    end)
  end

  def state(number) do
    given = HostApp.Match.state(number)
    players = Map.new(given.players, fn {port, player} -> {port, player(player)} end)

    fields =
      given |> Map.take([:frame, :stage, :menu_state, :distance]) |> Map.put(:players, players)

    struct!(Melee.GameState, fields)
  end

  defp player(player) do
    fields =
      Map.drop(player, [:__struct__, :x, :y, :facing, :controller_state, :connect_code, :nametag])

    position = %Melee.Position{x: player.x, y: player.y}

    struct!(
      Melee.PlayerState,
      Map.merge(fields, %{position: position, facing: player.facing > 0})
    )
  end
end

defmodule Melee.Controller do
  @moduledoc false
  # A controller keeps its state.

  def start_link, do: Agent.start_link(fn -> %Melee.ControllerState{} end)
  def state(controller), do: Agent.get(controller, & &1)

  def flush(_controller), do: :ok
  def press_button(controller, button), do: button(controller, button, true)
  def release_button(controller, button), do: button(controller, button, false)

  defp button(controller, button, held),
    do: Agent.update(controller, &%{&1 | button: %{&1.button | button => held}})

  def press_shoulder(controller, :l, value),
    do: Agent.update(controller, &%{&1 | l_shoulder: value})

  def tilt_analog(controller, :main, x, y),
    do: Agent.update(controller, &%{&1 | main_stick: {x, y}})

  def tilt_analog(controller, :c, x, y), do: Agent.update(controller, &%{&1 | c_stick: {x, y}})
end

defmodule HostApp.Dolphin do
  @moduledoc "A game through the library for Dolphin."

  alias Sconce.Bot.Bridge.Libmelee

  @doc "Plays frames, and returns one line with the digest of the controller's last state."
  def play(policy, frames) do
    {:ok, console} = Melee.Console.start_link(frames)
    {:ok, controller} = Melee.Controller.start_link()
    bridge = {Libmelee, console: console, controller: controller, port: 1}
    {:ok, bot} = Sconce.Bot.start_link([bridge: bridge] ++ HostApp.Play.bot(policy))
    played(bot, frames)
    :ok = Sconce.Bot.over(bot)
    [%{decisions: ^frames}] = Sconce.Bot.games(bot)
    %Melee.ControllerState{} = last = Melee.Controller.state(controller)
    :ok = GenServer.stop(bot)
    line(frames, last)
  end

  @doc "The last input of the same game without the library."
  def without(policy, frames) do
    {:ok, bot} = Sconce.Bot.start_link(HostApp.Play.bot(policy))

    last = for number <- 0..(frames - 1), reduce: nil, do: (_before -> step(bot, number))
    :ok = GenServer.stop(bot)
    last = Sconce.Compat.Melee.controller(last, :libmelee)
    %Melee.ControllerState{} = last
    line(frames, last)
  end

  defp step(bot, number) do
    {:ok, action} = Sconce.Bot.step(bot, Melee.Console.state(number))
    action
  end

  defp line(frames, last),
    do: "libmelee: #{frames} frames, last input #{inspect(last.main_stick)} #{pressed(last)}"

  defp pressed(state), do: inspect(for {button, true} <- state.button, do: button)

  defp played(bot, frames) do
    {:ok, %{game: game}} = Sconce.Bot.info(bot)
    unless game != nil and game.frames == frames, do: played(bot, frames)
  end
end

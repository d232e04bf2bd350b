defmodule HostApp.Match do
  @moduledoc "A made-up match: two players walk, jump and hit each other."

  alias ExPhil.Bridge.{GameState, Player}

  @doc "The state of a frame, as the app's bridge passes it on."
  def state(number) do
    %GameState{
      frame: number,
      stage: 0x19,
      menu_state: 2,
      projectiles: [],
      players: %{1 => player(number, -1), 2 => player(number, 1)},
      distance: 60.0
    }
  end

  defp player(t, side) do
    jumping? = rem(t, 90) < 24

    %Player{
      character: if(side < 0, do: 1, else: 9),
      x: side * 30.0 + 20 * :math.sin(t / 40),
      y: if(jumping?, do: 12.0, else: 0.0),
      percent: rem(div(t, 37) * 3, 120) / 1,
      stock: 4,
      facing: -side,
      action: if(rem(t, 90) in 86..89, do: 24, else: if(jumping?, do: 25, else: 14)),
      action_frame: rem(t, 90),
      invulnerable: false,
      jumps_left: if(jumping?, do: 1, else: 2),
      on_ground: not jumping?,
      shield_strength: 60.0,
      hitstun_frames_left: 0,
      speed_air_x_self: 0.0,
      speed_ground_x_self: 0.5,
      speed_y_self: 0.0,
      speed_x_attack: 0.0,
      speed_y_attack: 0.0
    }
  end
end

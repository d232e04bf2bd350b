# The structs of an app like ExPhil: its bridge fills them, and its agent answers with them.

defmodule ExPhil.Bridge.GameState do
  @moduledoc false
  defstruct [:frame, :stage, :menu_state, :players, :own_port, :projectiles, :items, :distance]
end

defmodule ExPhil.Bridge.Player do
  @moduledoc false
  defstruct [:character, :x, :y, :percent, :stock, :facing, :action, :action_frame, :invulnerable] ++
              [:jumps_left, :on_ground, :shield_strength, :hitstun_frames_left, :nana] ++
              [:speed_air_x_self, :speed_ground_x_self, :speed_y_self, :speed_x_attack] ++
              [:speed_y_attack, :controller_state, :connect_code, :nametag]
end

defmodule ExPhil.Bridge.ControllerState do
  @moduledoc false
  defstruct [:main_stick, :c_stick, :l_shoulder, :r_shoulder, :button_a, :button_b, :button_x] ++
              [:button_y, :button_z, :button_l, :button_r, :button_d_up]
end

defmodule ExPhil.Error.AgentError do
  @moduledoc false
  defexception [:reason, :agent]

  def new(reason, opts), do: %__MODULE__{reason: reason, agent: opts[:agent]}

  @impl true
  def message(error), do: "#{error.reason} (#{error.agent})"
end

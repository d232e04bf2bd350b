defmodule Sconce.Bot.Bridge.Program do
  alias Sconce.Options

  @connect [
    command: [type: :path, required: true, doc: "Path of the program."],
    args: [type: {:list, :string}, default: [], doc: "Its arguments."],
    trust: [
      type: :boolean,
      default: false,
      doc: "Accepts terms with atoms that this VM does not know yet, which are then never freed."
    ]
  ]

  # The fields of libmelee_ex's structs, so that their atoms exist where the library does not.
  @fields ~w(__struct__ Elixir.Melee.GameState Elixir.Melee.PlayerState Elixir.Melee.Position Elixir.Melee.Projectile
    Elixir.Melee.ECB Elixir.Melee.ControllerState Elixir.Melee.FoDPlatforms Elixir.Melee.StadiumTransformation x y top
    bottom left right event type frame stage whispy fod_platforms stadium_transformation menu_state submenu players
    projectiles ready_to_start is_teams distance menu_selection startAt playedOn consoleNick custom character
    character_selected position percent shield_strength is_powershield stock facing action action_frame invulnerable
    invulnerability_left hitlag_left hitstun_frames_left jumps_left on_ground speed_air_x_self speed_y_self speed_x_attack
    speed_y_attack speed_ground_x_self nana cursor coin_down controller_status off_stage iasa moonwalkwarning
    controller_state ecb costume cpu_level is_holding_cpu_slider nametag nickName connectCode displayName team_id speed
    owner expiration_frames subtype spawn_id button processed_button main_stick c_stick raw_main_stick l_shoulder
    r_shoulder a b z l r start d_up d_down d_left d_right menu over finished input menu_input)a

  @moduledoc """
  The bridge to a program that writes frames to its output and reads inputs from its input: another VM, or anything that
  writes Erlang's external term format.

      {:ok, bot} = Sconce.Bot.start_link(policy: policy, bridge: {Sconce.Bot.Bridge.Program, command: "/usr/bin/elixir", args: ["game.exs"]})

  Each message is preceded by its length in four bytes (big-endian).

  | from the program | meaning |
  |---|---|
  | `{:frame, state}` | a state of the game, as `Sconce.Bot.step/3` takes it |
  | `{:menu, state}` | a state outside of a game |
  | `{:over, reason}` | the game has ended |

  | to the program | meaning |
  |---|---|
  | `{:input, input}` | a map of `buttons`, `main_stick`, `c_stick` and `shoulder`; of `choices` and `input` for other games |
  | `{:menu_input, value}` | what the `:menu` function of the bot returned |

  The end of the program closes the bridge, and closing the bridge ends the program's input. A message that is not one of
  these closes it, too.

  ## Options

  #{Options.docs(@connect)}
  """

  @behaviour Sconce.Bot.Bridge

  @doc false
  def fields, do: @fields

  @impl true
  def connect(opts) do
    options = Options.validate!(opts, @connect)
    args = [:binary, :exit_status, packet: 4, args: options[:args]]
    port = Port.open({:spawn_executable, options[:command]}, args)
    {:ok, %{port: port, safe: if(options[:trust], do: [], else: [:safe])}}
  rescue
    error in ErlangError -> {:error, {error.original, opts[:command]}}
  end

  @impl true
  def next(%{port: port} = bridge, timeout_ms) do
    receive do
      {^port, {:data, message}} -> {event(message, bridge.safe), bridge}
      {^port, {:exit_status, status}} -> {{:closed, {:exit_status, status}}, bridge}
      {:EXIT, ^port, reason} -> {{:closed, reason}, bridge}
    after
      timeout_ms -> {:none, bridge}
    end
  end

  defp event(message, safe) do
    case :erlang.binary_to_term(message, safe) do
      {kind, _state} = event when kind in [:frame, :menu, :over] -> event
      other -> {:closed, {:bad_message, other}}
    end
  rescue
    ArgumentError -> {:closed, {:bad_message, byte_size(message)}}
  end

  @impl true
  def put(%{port: port} = bridge, input) do
    Port.command(port, :erlang.term_to_binary(message(input)))
    {:ok, bridge}
  rescue
    ArgumentError -> {:error, :closed}
  end

  defp message(%Sconce.Action{buttons: %{}} = action),
    do: {:input, Map.take(action, [:buttons, :main_stick, :c_stick, :shoulder])}

  defp message(%Sconce.Action{} = action), do: {:input, Map.take(action, [:choices, :input])}
  defp message(value), do: {:menu_input, value}

  @impl true
  def disconnect(%{port: port}) do
    Port.close(port)
    # The next connection does not read old messages.
    flush(port)
  rescue
    ArgumentError -> flush(port)
  end

  defp flush(port) do
    receive do
      {^port, _message} -> flush(port)
      {:EXIT, ^port, _reason} -> flush(port)
    after
      0 -> :ok
    end
  end
end

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

  # The fields of the structs of libmelee_ex, of ExPhil and of frames, so that their atoms exist where the library does not,
  # and where its modules are not loaded yet.
  @libmelee ~w(__struct__ Elixir.Melee.GameState Elixir.Melee.PlayerState Elixir.Melee.Position Elixir.Melee.Projectile
    Elixir.Melee.ECB Elixir.Melee.ControllerState Elixir.Melee.FoDPlatforms Elixir.Melee.StadiumTransformation x y top
    bottom left right event type frame stage whispy fod_platforms stadium_transformation menu_state submenu players
    projectiles ready_to_start is_teams distance menu_selection startAt playedOn consoleNick custom character
    character_selected position percent shield_strength is_powershield stock facing action action_frame invulnerable
    invulnerability_left hitlag_left hitstun_frames_left jumps_left on_ground speed_air_x_self speed_y_self speed_x_attack
    speed_y_attack speed_ground_x_self nana cursor coin_down controller_status off_stage iasa moonwalkwarning
    controller_state ecb costume cpu_level is_holding_cpu_slider nametag nickName connectCode displayName team_id speed
    owner expiration_frames subtype spawn_id button processed_button main_stick c_stick raw_main_stick l_shoulder
    r_shoulder a b z l r start d_up d_down d_left d_right)a
  @exphil ~w(Elixir.ExPhil.Bridge.GameState Elixir.ExPhil.Bridge.Player Elixir.ExPhil.Bridge.Nana
    Elixir.ExPhil.Bridge.ControllerState Elixir.ExPhil.Bridge.Projectile Elixir.ExPhil.Bridge.Item own_port items
    fod_platform_left fod_platform_right stadium_event stadium_type whispy_direction connect_code button_a button_b
    button_x button_y button_z button_l button_r button_d_up speed_x speed_y facing held_by timer)a
  @frame [
           Sconce.Frame,
           Sconce.Frame.Player,
           :buttons,
           :shoulder,
           :nan,
           :infinity,
           :neg_infinity
         ] ++
           Map.keys(%Sconce.Frame{}) ++ Keyword.keys(Sconce.Frame.Player.fields())
  @fields Enum.uniq(
            ~w(frame menu over finished input menu_input)a ++ @libmelee ++ @exphil ++ @frame
          )

  # A line of text at the place of a length reads as more than this: its first byte is at least that of a tab.
  @max_bytes 64 * 1024 * 1024

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
  these closes it, too, as does one of more than #{div(@max_bytes, 1024 * 1024)} MiB. The program's output is for messages alone: a line of a log that
  it prints there reads as such a length, so let it write to its standard error.

  The atoms of game states of libmelee_ex and ExPhil and of `Sconce.Frame` are known. A message with another atom that this
  VM does not know closes the bridge without `trust: true`.

  ## Options

  #{Options.docs(@connect)}
  """

  @behaviour Sconce.Bot.Bridge

  @doc false
  def fields, do: @fields

  @impl true
  def connect(opts) do
    options = Options.validate!(opts, @connect)
    # With this module the owners of projectiles are known atoms.
    {:module, _frame} = Code.ensure_loaded(Sconce.Frame)
    args = [:binary, :exit_status, :stream, args: options[:args]]
    port = Port.open({:spawn_executable, options[:command]}, args)
    {:ok, %{port: port, trust: options[:trust], buffer: ""}}
  rescue
    error in ErlangError -> {:error, {error.original, opts[:command]}}
  end

  @impl true
  def next(bridge, timeout_ms),
    do: next_until(bridge, System.monotonic_time(:millisecond) + timeout_ms)

  # Output comes in pieces, which end anywhere.
  defp next_until(%{port: port, buffer: buffer} = bridge, until) do
    case buffer do
      <<size::32, _::binary>> when size > @max_bytes ->
        {{:closed, {:bad_message, text(buffer, size)}}, bridge}

      <<size::32, message::binary-size(size), rest::binary>> ->
        {event(message, bridge.trust), %{bridge | buffer: rest}}

      _part ->
        receive do
          {^port, {:data, more}} -> next_until(%{bridge | buffer: buffer <> more}, until)
          {^port, {:exit_status, status}} -> {{:closed, {:exit_status, status}}, bridge}
        after
          max(until - System.monotonic_time(:millisecond), 0) -> {:none, bridge}
        end
    end
  end

  defp text(buffer, size) do
    first = buffer |> binary_part(0, min(byte_size(buffer), 40)) |> inspect(printable_limit: 40)
    "length #{size} at #{first}: stdout is for messages, logs belong to stderr"
  end

  defp event(message, trust) do
    case :erlang.binary_to_term(message, if(trust, do: [], else: [:safe])) do
      {kind, _state} = event when kind in [:frame, :menu, :over] -> event
      other -> {:closed, {:bad_message, other}}
    end
  rescue
    ArgumentError -> {:closed, {:bad_message, unread(byte_size(message), trust)}}
  end

  defp unread(size, true), do: "#{size} bytes that are no term"

  defp unread(size, false),
    do: "#{size} bytes with an atom that this VM does not know (trust: true takes it), or no term"

  @impl true
  def put(%{port: port} = bridge, input) do
    message = input |> message() |> :erlang.term_to_binary()
    Port.command(port, [<<byte_size(message)::32>>, message])
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
    after
      0 -> :ok
    end
  end
end

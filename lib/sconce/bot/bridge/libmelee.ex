defmodule Sconce.Bot.Bridge.Libmelee do
  alias Sconce.{Action, Options}
  alias Sconce.Compat.Melee

  @connect [
    session: [type: :any, default: nil, doc: "The pid or the name of a `Melee.Session`."],
    console: [
      type: :any,
      default: nil,
      doc: "The pid or the name of a `Melee.Console`, without a session."
    ],
    controller: [
      type: :any,
      default: nil,
      doc: "The pid or the name of a `Melee.Controller`, without a session."
    ],
    port: [type: {:in, [1, 2, 3, 4]}, default: 1, doc: "Port of the session's controller."]
  ]

  @moduledoc """
  The bridge to Dolphin by libmelee_ex, which is called if the app has it and is not a dependency.

      {:ok, session} = Melee.Session.start_link(path: dolphin, iso_path: iso, ports: [1], console: [polling_mode: true])
      {:ok, bot} = Sconce.Bot.start_link(policy: policy, bridge: {Sconce.Bot.Bridge.Libmelee, session: session})

  Give the console `polling_mode: true`: otherwise a bot that stops waits for a frame. Each input is sent before the next
  step of the console, which flushes the controllers. Buttons and sticks that have not changed are not sent again, except
  after a menu.

  A `:menu` function of the bot drives the menus; it may keep a `Melee.MenuHelper`:

      menu = fn state, helper -> {nil, Melee.MenuHelper.step(helper || Melee.MenuHelper.new(), state, controller, opts)} end

  ## Options

  #{Options.docs(@connect)}
  """

  @behaviour Sconce.Bot.Bridge

  # Called by name, because the library may be missing. `Melee` alone is the alias above.
  @session Elixir.Melee.Session
  @console Elixir.Melee.Console
  @controller Elixir.Melee.Controller

  @impl true
  def connect(opts) do
    options = Options.validate!(opts, @connect)

    cond do
      not Code.ensure_loaded?(@console) ->
        {:error, "libmelee_ex is not loaded: Melee.Console is missing"}

      session = options[:session] ->
        console = apply(@session, :console, [session])
        with_controller(console, apply(@session, :controller, [session, options[:port]]), options)

      options[:console] ->
        with_controller(options[:console], options[:controller], options)

      true ->
        raise ArgumentError, "the bridge needs :session, or :console and :controller"
    end
  end

  defp with_controller(_console, nil, options),
    do: {:error, "no controller at port #{options[:port]}"}

  defp with_controller(console, controller, _options),
    do: {:ok, %{console: console, controller: controller, sent: nil}}

  @impl true
  def next(bridge, _timeout_ms) do
    case apply(@console, :step, [bridge.console]) do
      {:ok, state} ->
        # The menus' inputs are not known here.
        sent = if Melee.phase(state) == :game, do: bridge.sent
        {{:frame, state}, %{bridge | sent: sent}}

      nil ->
        {:none, bridge}

      {:error, reason} ->
        {{:closed, reason}, bridge}
    end
  end

  @impl true
  def put(bridge, %Action{buttons: %{}} = action) do
    now = commands(action)
    before = bridge.sent || %{}

    for {control, value} <- now, before[control] != value, do: command(bridge, control, value)
    {:ok, %{bridge | sent: now}}
  end

  def put(_bridge, other), do: {:error, "not an input of a controller: #{inspect(other)}"}

  defp commands(action) do
    for {button, held} <- action.buttons,
        into: %{
          main: {action.main_stick.x, action.main_stick.y},
          c: {action.c_stick.x, action.c_stick.y},
          shoulder: action.shoulder
        },
        do: {{:button, button}, held}
  end

  defp command(bridge, {:button, button}, true), do: control(bridge, :press_button, [button])
  defp command(bridge, {:button, button}, false), do: control(bridge, :release_button, [button])
  defp command(bridge, :shoulder, value), do: control(bridge, :press_shoulder, [:l, value])
  defp command(bridge, stick, {x, y}), do: control(bridge, :tilt_analog, [stick, x, y])

  defp control(bridge, function, args),
    do: apply(@controller, function, [bridge.controller | args])

  @impl true
  def disconnect(_bridge), do: :ok
end

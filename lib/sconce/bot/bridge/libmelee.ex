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
    port: [
      type: {:in, [1, 2, 3, 4, nil]},
      default: nil,
      doc: "Port of the session's controller; `nil` is the port of the bot, or 1 without a bot."
    ]
  ]

  @moduledoc """
  The bridge to Dolphin by libmelee_ex, which is called if the app has it and is not a dependency.

      console = [polling_mode: true, polling_timeout: 10]
      {:ok, session} = Melee.Session.start_link(path: dolphin, iso_path: iso, ports: [2], console: console)
      {:ok, bot} = Sconce.Bot.start_link(policy: policy, port: 2, bridge: {Sconce.Bot.Bridge.Libmelee, session: session})

  Give the console `polling_mode: true`: otherwise a bot that stops waits for a frame. With its default
  `polling_timeout: 0` the console has no frame at most calls, and each call flushes all controllers; with 10 it waits up
  to 10 ms for a frame.

  The bot's `:port` is the player that it sees and the controller that it presses. Each input is sent before the next step
  of the console, which flushes the controllers; the last one is flushed when the bridge disconnects. Buttons and sticks
  that have not changed are not sent again, except after a menu and to a new controller.

  A session starts a controller anew that has crashed, and the bridge goes on with it. Without a session, the death of the
  controller closes the bridge.

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
  def options(opts, bot) do
    if opts[:port] not in [nil, bot[:port]] do
      given = "option :port of the bridge: #{inspect(opts[:port])}"
      raise ArgumentError, "#{given}, but the bot plays port #{bot[:port]}: give it to the bot"
    end

    Keyword.put(opts, :port, bot[:port])
  end

  @impl true
  def connect(opts) do
    options = Options.validate!(opts, @connect)
    port = options[:port] || 1

    cond do
      not Code.ensure_loaded?(@console) ->
        {:error, "libmelee_ex is not loaded: Melee.Console is missing"}

      session = options[:session] ->
        console = apply(@session, :console, [session])
        find = fn -> apply(@session, :controller, [session, port]) end
        monitored(%{console: console, find: find, at: "port #{port}", session?: true})

      options[:console] && options[:controller] ->
        find = fn -> options[:controller] end
        at = inspect(options[:controller])
        monitored(%{console: options[:console], find: find, at: at, session?: false})

      true ->
        raise ArgumentError, "the bridge needs :session, or :console and :controller"
    end
  end

  # Inputs are casts, which vanish without a trace if the controller is dead.
  defp monitored(%{find: find} = bridge) do
    controller = find.()

    case controller && GenServer.whereis(controller) do
      nil ->
        {:error, "no controller at #{bridge.at}"}

      found ->
        monitor = Process.monitor(found)
        {:ok, Map.merge(bridge, %{controller: found, monitor: monitor, sent: nil})}
    end
  end

  # The bridge with a controller that is alive as far as it knows.
  defp alive(%{monitor: monitor} = bridge) do
    receive do
      {:DOWN, ^monitor, :process, _controller, reason} ->
        # The session may not know yet: it then gives the dead one, whose monitor fires again at the next frame.
        if bridge.session?, do: monitored(bridge), else: {:error, {:controller, reason}}
    after
      0 -> {:ok, bridge}
    end
  end

  @impl true
  def next(bridge, _timeout_ms) do
    case alive(bridge) do
      {:ok, bridge} -> step(bridge)
      {:error, reason} -> {{:closed, reason}, bridge}
    end
  end

  defp step(bridge) do
    case apply(@console, :step, [bridge.console]) do
      {:ok, state} ->
        # The menus' inputs are not known here.
        sent = if Melee.phase(state) == :game, do: bridge.sent
        {{:frame, state}, %{bridge | sent: sent}}

      nil ->
        # A console without a polling timeout answers at once.
        Process.sleep(1)
        {:none, bridge}

      {:error, reason} ->
        {{:closed, reason}, bridge}
    end
  end

  @impl true
  def put(bridge, %Action{buttons: %{}} = action) do
    with {:ok, bridge} <- alive(bridge) do
      now = commands(action)
      before = bridge.sent || %{}

      for {control, value} <- now, before[control] != value, do: command(bridge, control, value)
      {:ok, %{bridge | sent: now}}
    end
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

  # The last input has no step after it. The controller may be dead.
  @impl true
  def disconnect(%{controller: controller, monitor: monitor}) do
    Process.demonitor(monitor, [:flush])
    apply(@controller, :flush, [controller])
  catch
    :exit, _dead -> :ok
  end
end

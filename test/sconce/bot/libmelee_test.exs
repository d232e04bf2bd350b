defmodule Sconce.Bot.Bridge.LibmeleeTest do
  # The modules of the library are made here, and removed afterwards.
  use ExUnit.Case, async: false

  import ExUnit.CaptureLog

  alias Sconce.{Action, Bot, Policy}
  alias Sconce.Bot.Bridge.Libmelee
  alias Sconce.Test.MeleeStates

  @moduletag timeout: 120_000

  # The processes of libmelee_ex with its order of commands: a console flushes its controllers at each step, and a
  # controller applies nothing before a flush. The states of this console are from the test.
  @library (quote do
              defmodule Melee.Controller do
                use GenServer

                def start_link(test), do: GenServer.start_link(__MODULE__, test)
                def press_button(pid, button), do: GenServer.cast(pid, {button, true})
                def release_button(pid, button), do: GenServer.cast(pid, {button, false})
                def press_shoulder(pid, :l, value), do: GenServer.cast(pid, {:shoulder, value})
                def tilt_analog(pid, stick, x, y), do: GenServer.cast(pid, {stick, {x, y}})
                def flush(pid), do: GenServer.call(pid, :flush)

                def init({test, port}), do: {:ok, {test, port, %{}}}

                def handle_cast({key, value}, {test, port, now}),
                  do: {:noreply, {test, port, Map.put(now, key, value)}}

                def handle_call(:flush, _from, {test, port, now} = state) do
                  if now != %{}, do: send(test, {:flushed, port, self(), now})
                  {:reply, :ok, state}
                end
              end

              defmodule Melee.Console do
                use GenServer

                def start_link(states), do: GenServer.start_link(__MODULE__, states)
                def step(console), do: GenServer.call(console, :step)
                def give(console, states), do: GenServer.call(console, {:give, states})

                def register_controller(console, pid),
                  do: GenServer.call(console, {:register, pid})

                def unregister_controller(console, pid),
                  do: GenServer.call(console, {:unregister, pid})

                def steps(console), do: GenServer.call(console, :steps)

                def init(states), do: {:ok, {states, [], 0}}

                def handle_call({:give, more}, _from, {states, pids, n}),
                  do: {:reply, :ok, {states ++ more, pids, n}}

                def handle_call({:register, pid}, _from, {states, pids, n}),
                  do: {:reply, :ok, {states, [pid | pids], n}}

                def handle_call({:unregister, pid}, _from, {states, pids, n}),
                  do: {:reply, :ok, {states, pids -- [pid], n}}

                def handle_call(:steps, _from, {_states, _pids, n} = state),
                  do: {:reply, n, state}

                def handle_call(:step, _from, {states, pids, n}) do
                  Enum.each(pids, &Melee.Controller.flush/1)

                  case states do
                    [] -> {:reply, nil, {[], pids, n + 1}}
                    [state | rest] -> {:reply, {:ok, state}, {rest, pids, n + 1}}
                  end
                end
              end

              defmodule Melee.Session do
                use GenServer

                def start_link(opts), do: GenServer.start_link(__MODULE__, opts)
                def console(session), do: GenServer.call(session, :console)
                def controller(session, port), do: GenServer.call(session, {:controller, port})

                def init({test, ports, states}) do
                  Process.flag(:trap_exit, true)
                  {:ok, console} = Melee.Console.start_link(states)
                  {:ok, Enum.reduce(ports, %{test: test, console: console}, &opened(&2, &1))}
                end

                defp opened(%{test: test, console: console} = state, port) do
                  {:ok, pid} = Melee.Controller.start_link({test, port})
                  :ok = Melee.Console.register_controller(console, pid)
                  Map.put(state, port, pid)
                end

                def handle_call(:console, _from, state), do: {:reply, state.console, state}

                def handle_call({:controller, port}, _from, state),
                  do: {:reply, state[port], state}

                def handle_info({:EXIT, pid, _reason}, state) do
                  {port, ^pid} = Enum.find(state, fn {_port, open} -> open == pid end)
                  :ok = Melee.Console.unregister_controller(state.console, pid)
                  {:noreply, opened(state, port)}
                end
              end
            end)

  setup_all do
    # The alias of this file does not reach the quoted modules.
    Code.eval_quoted(@library)
    modules = for name <- ~w(Controller Console Session), do: Module.concat(Melee, name)

    on_exit(fn ->
      for module <- modules do
        :code.purge(module)
        :code.delete(module)
        :code.purge(module)
      end
    end)

    spec = [embedding: {:melee, layout: :packed}, backbone: :mlp, hidden_sizes: [8]]
    {:ok, policy} = Policy.init(spec, seed: 1)

    %{
      policy: policy,
      console: Melee.Console,
      controller: Melee.Controller,
      session: Melee.Session
    }
  end

  defp session(library, ports, states \\ []),
    do:
      start_supervised!(%{
        id: :session,
        start: {library.session, :start_link, [{self(), ports, states}]}
      })

  defp held(pressed) do
    neutral = Sconce.Compat.Melee.neutral()
    struct(%Action{choices: %{}}, %{neutral | buttons: %{neutral.buttons | a: pressed}})
  end

  test "a bot sees the player and presses the controller of its one port", context do
    session = session(context, [1, 2], MeleeStates.game(100))
    bridge = {Libmelee, session: session}
    options = [policy: context.policy, port: 2, deadline_ms: 10_000, bridge: bridge]
    start_supervised!({Bot, options})
    assert_receive {:flushed, 2, _controller, _now}, 30_000
    :ok = stop_supervised(Bot)
    refute_received {:flushed, 1, _controller, _now}
  end

  test "a port of the bridge that is not the bot's is refused", context do
    session = session(context, [1, 2])
    bridge = {Libmelee, session: session, port: 2}
    Process.flag(:trap_exit, true)
    {:ok, bot} = Bot.start_link(policy: context.policy, reconnect: 0, bridge: bridge)
    assert_receive {:EXIT, ^bot, %Sconce.Error{} = error}, 30_000
    assert Exception.message(error) =~ "the bot plays port 1: give it to the bot"
    assert Libmelee.options([session: session, port: 1], port: 1) == [port: 1, session: session]
  end

  test "the last input before the end is flushed, and a dead controller does not matter",
       context do
    session = session(context, [1])
    {:ok, bridge} = Libmelee.connect(session: session)
    {:ok, bridge} = Libmelee.put(bridge, held(true))
    refute_received {:flushed, 1, _controller, _now}
    Libmelee.disconnect(bridge)
    assert_receive {:flushed, 1, _controller, %{a: true}}

    {:ok, controller} = GenServer.start(context.controller, {self(), 1})
    console = context.session.console(session)
    {:ok, bridge} = Libmelee.connect(console: console, controller: controller)
    GenServer.stop(controller)
    assert Libmelee.disconnect(bridge) == :ok
  end

  test "a bot that stops amid a game releases what it held", context do
    states = MeleeStates.game(120)
    session = session(context, [1], states)
    console = context.session.console(session)
    options = [policy: context.policy, deadline_ms: 10_000, bridge: {Libmelee, session: session}]
    bot = start_supervised!({Bot, options})
    seen(bot, 37)
    # The bot waits for a frame: what it holds is flushed by the steps that find none.
    :ok = stop_supervised(Bot)
    steps = context.console.steps(console)
    last = flushed(nil)
    neutral = Sconce.Compat.Melee.neutral()
    assert Map.take(last, Map.keys(neutral.buttons)) == neutral.buttons
    assert {last.main, last.shoulder} == {{0.5, 0.5}, 0.0}
    assert context.console.steps(console) == steps
  end

  defp seen(bot, frames) do
    {:ok, %{game: game}} = Bot.info(bot)
    unless game && game.frames >= frames, do: seen(bot, frames)
  end

  defp flushed(last) do
    receive do
      {:flushed, 1, _controller, now} -> flushed(now)
    after
      0 -> last
    end
  end

  test "a controller that its session starts anew gets the whole next input", context do
    session = session(context, [1])
    console = context.session.console(session)
    {:ok, bridge} = Libmelee.connect(session: session)
    {:ok, bridge} = Libmelee.put(bridge, held(true))
    old = context.session.controller(session, 1)
    monitor = Process.monitor(old)
    Process.exit(old, :kill)
    assert_receive {:DOWN, ^monitor, :process, _old, :killed}
    refute context.session.controller(session, 1) == old

    {:ok, bridge} = Libmelee.put(bridge, held(true))
    context.console.step(console)
    assert_receive {:flushed, 1, new, %{a: true, b: false, main: {0.5, 0.5}}}
    refute new == old

    # A step without a frame looks for the controller, too.
    Process.exit(new, :kill)
    monitor = Process.monitor(new)
    assert_receive {:DOWN, ^monitor, :process, _new, _reason}
    assert {:none, bridge} = Libmelee.next(bridge, 20)
    refute bridge.controller == new
  end

  test "without a session, a dead controller closes the bridge, which connects to a living one alone",
       context do
    {:ok, controller} = GenServer.start(context.controller, {self(), 1})
    console = session(context, [1]) |> context.session.console()
    {:ok, bridge} = Libmelee.connect(console: console, controller: controller)
    Process.exit(controller, :kill)
    monitor = Process.monitor(controller)
    assert_receive {:DOWN, ^monitor, :process, _controller, _reason}
    assert {:error, {:controller, :killed}} = Libmelee.put(bridge, held(true))

    {:ok, controller} = GenServer.start(context.controller, {self(), 1})
    {:ok, bridge} = Libmelee.connect(console: console, controller: controller)
    GenServer.stop(controller)
    assert {{:closed, {:controller, :normal}}, _bridge} = Libmelee.next(bridge, 20)

    assert {:error, "no controller at :nowhere"} =
             Libmelee.connect(console: console, controller: :nowhere)

    assert {:error, "no controller at port 4"} =
             Libmelee.connect(session: session_again(context), port: 4)
  end

  defp session_again(context) do
    {:ok, session} = context.session.start_link({self(), [1], []})
    session
  end

  test "a console without a frame is not asked again at once", context do
    session = session(context, [1])
    console = context.session.console(session)
    {:ok, bridge} = Libmelee.connect(session: session)
    began = System.monotonic_time(:millisecond)
    for _ <- 1..20, do: assert({:none, _bridge} = Libmelee.next(bridge, 20))
    # A sleep is at least as long as it says.
    assert System.monotonic_time(:millisecond) - began >= 20
    assert context.console.steps(console) == 20
  end

  test "options that are missing are named" do
    assert_raise ArgumentError, ~r/:session, or :console and :controller/, fn ->
      Libmelee.connect([])
    end
  end

  test "an input that is none of a controller is an error", context do
    {:ok, bridge} = Libmelee.connect(session: session(context, [1]))
    assert capture_log(fn -> assert {:error, _text} = Libmelee.put(bridge, :jump) end) == ""
  end
end

defmodule Sconce.ServerTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch, only: [tmp_dir!: 1]

  alias Sconce.{Corpus, Error, Policy, Serving, Session, Trainer}
  alias Sconce.Session.{Proxy, Watch}
  alias Sconce.Run.Keeper

  @spec_options [
    embedding: {:vector, 1},
    backbone: :mlp,
    hidden_sizes: [8],
    heads: [fire: {:bernoulli, 1}]
  ]

  # Calls that no server knows; some resemble known ones.
  defp unknown(policy) do
    [
      :anything,
      {:swap, 5},
      {:swap, %{policy | device: nil}},
      {:drain, :soon},
      {:drain, -1},
      {:subscribe, 5},
      {:await, 1, 2},
      {:open, 1},
      %{},
      [1 | 2],
      fn -> :ok end,
      <<0xFF>>
    ]
  end

  # Messages that no server expects.
  defp stray do
    ref = make_ref()

    [
      :statistics,
      :join,
      :deliver,
      {:statistics, ref},
      {:join, ref},
      {:late, ref},
      {:late, 5},
      {:sconce, ref, {:ok, true}},
      {:sconce, ref, {:event, %{}}},
      {:sconce, 5, 6, 7, 8},
      {:sconce, {ref, self(), 1, nil}, :no_such_call, [], nil},
      {:DOWN, ref, :process, self(), :killed},
      {:DOWN, 1, 2, 3, 4},
      {:EXIT, spawn(fn -> :ok end), :killed},
      {ref, :late_answer},
      [1 | 2],
      <<0xFF>>
    ]
  end

  defp bother(server, policy) do
    for message <- stray(), do: send(server, message)
    for request <- [{:keep, 5}, {:given_up, 5} | stray()], do: GenServer.cast(server, request)

    for request <- unknown(policy) do
      assert {:error, %Error{kind: :mismatch, op: :call} = error} =
               GenServer.call(server, request)

      assert Exception.message(error) =~ "call: expected one of"
    end
  end

  test "a serving survives unknown calls, casts and messages" do
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    {:ok, serving} = Serving.start_link(policy: policy)
    {:ok, session} = Serving.open(serving, seed: 1)
    bother(serving, policy)
    assert {:ok, _action} = Session.act(session, [0.5])
    # A policy of another VM is an error only of its call.
    assert {:error, %Error{kind: :not_found, op: :swap}} =
             Serving.swap(serving, %{policy | ref: make_ref()})

    assert Serving.swap(serving, policy) == :ok
    assert Serving.drain(serving) == :ok
  end

  test "the sender of a serving's answers drops unknown messages" do
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    {:ok, serving} = Serving.start_link(policy: policy)
    {:links, links} = Process.info(serving, :links)
    # The serving is also linked to the registry and to this process.
    [sender] = for pid <- links, Process.info(pid, :priority) == {:priority, :high}, do: pid
    for _ <- 1..100, message <- stray(), do: send(sender, message)
    {:ok, session} = Serving.open(serving)
    assert {:ok, _action} = Session.act(session, [0.5])
    eventually(fn -> Process.info(sender, :message_queue_len) == {:message_queue_len, 0} end)
  end

  test "a run survives unknown calls, casts and messages" do
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    run = long_run()
    bother(run, policy)
    assert %{status: :running} = Trainer.info(run)
    # A run that is stopped before its first step would end as cancelled.
    eventually(fn -> Trainer.info(run).step end)
    :ok = Trainer.stop(run)
    assert {:ok, %{stopped: :stopped}} = Trainer.await(run)
    bother(run, policy)
    assert {:ok, _report} = Trainer.await(run)
  end

  test "an await that times out or whose process dies leaves no state behind" do
    run = long_run()
    for _ <- 1..200, do: assert({:error, %Error{kind: :deadline}} = Trainer.await(run, 0))
    killed = for _ <- 1..50, do: spawn(fn -> Trainer.await(run) end)
    waiting = fn -> map_size(:sys.get_state(run).waiting) end
    eventually(fn -> waiting.() == 50 end)
    {:monitors, monitors} = Process.info(run, :monitors)
    for pid <- killed, do: Process.exit(pid, :kill)
    eventually(fn -> waiting.() == 0 end)
    assert {:monitors, left} = Process.info(run, :monitors)
    assert length(left) == length(monitors) - 50

    # A process that still waits gets its answer, although others gave up.
    task = Task.async(fn -> Trainer.await(run) end)
    eventually(fn -> waiting.() == 1 end)
    for _ <- 1..10, do: Trainer.await(run, 1)
    eventually(fn -> Trainer.info(run).step end)
    :ok = Trainer.stop(run)
    assert {:ok, %{stopped: :stopped}} = Task.await(task)
    assert waiting.() == 0
    {:messages, messages} = Process.info(self(), :messages)
    assert messages == []
  end

  test "the keeper of runs and the proxies of remote sessions survive unknown messages" do
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    keeper = Process.whereis(Keeper)
    bother(keeper, policy)
    assert Process.whereis(Keeper) == keeper

    caller = spawn(fn -> Process.sleep(:infinity) end)
    watch = Watch.start(caller)
    {:ok, proxy} = Proxy.start_link(caller)
    for pid <- [watch, proxy], do: bother(pid, policy)
    # The proxy ignores unknown calls of its owner too.
    send(proxy, {:sconce, {make_ref(), caller, 1, nil}, :no_such_call, [], nil})
    assert Process.alive?(proxy) and Process.alive?(watch)
    assert {:error, %Error{}} = GenServer.call(proxy, :anything)
    Process.unlink(proxy)
    Process.exit(caller, :kill)
    eventually(fn -> not Process.alive?(proxy) end)
  end

  defp long_run do
    dir = tmp_dir!("server")
    game = {for(t <- 1..60, do: t / 60), for(t <- 1..60, do: rem(t, 2))}
    into = Path.join(dir, "corpus")

    {:ok, corpus} =
      Corpus.build({:vector, 1}, [game, game], into: into, heads: [fire: {:bernoulli, 1}])

    options = [corpus: corpus, out: Path.join(dir, "run"), steps: 100_000_000, batch_size: 2]
    options = options ++ [window_size: 8, val_split: 0.5, validate_every: 100_000_000, threads: 1]
    {:ok, run} = Trainer.start_link(options ++ [backbone: :mlp, hidden_sizes: [8]])
    run
  end

  defp eventually(true?, left \\ 500) do
    cond do
      true?.() -> :ok
      left == 0 -> flunk("the condition never became true")
      true -> Process.sleep(10) && eventually(true?, left - 1)
    end
  end
end

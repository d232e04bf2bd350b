defmodule Sconce.Run.AgainTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch, only: [tmp_dir!: 1]

  alias Sconce.Env.CartPole
  alias Sconce.{Error, PPO, Pressure, Run, Trainer}
  alias Sconce.Trainer.Settings

  defmodule HangsOnce do
    @moduledoc "A world whose step number `:hangs_at`, counted over all runs, never returns."
    @behaviour Sconce.Env.World

    def begin(hangs_at), do: :persistent_term.put(__MODULE__, {:counters.new(1, []), hangs_at})

    @impl true
    def spec(_options),
      do: %{observation_size: 1, input: [move: {:choice, 2}], time_limit: 9, solved: 9.0}

    @impl true
    def reset(%{seed: seed}), do: {[rem(seed, 7) / 7], rem(seed, 7)}

    @impl true
    def step(%{move: move}, state) do
      {count, hangs_at} = :persistent_term.get(__MODULE__)
      :counters.add(count, 1, 1)
      if :counters.get(count, 1) == hangs_at, do: Process.sleep(:infinity)
      state = rem(3 * state + move, 11)
      {[state / 11], move / 1, if(state == 0, do: :terminated, else: :running), state}
    end
  end

  @small [environments: 4, rollout_steps: 8, minibatches: 2, hidden_sizes: [8], seed: 1] ++
           [steps: 192, save_every: 1, processes: 1, step_timeout_ms: 1_000]
  @soon %{{:deadline, :train} => [retry: [times: 2, backoff_ms: 0], stop: []]}

  # The result and the decisions of a run.
  defp run(noun, opts) do
    test = self()
    opts = [progress: &send(test, {:told, &1})] ++ opts
    {:ok, run} = noun.start_link(opts)
    result = noun.await(run)
    GenServer.stop(run)
    {result, told([])}
  end

  defp told(events) do
    receive do
      {:told, %{event: :pressure} = event} -> told([event | events])
      {:told, _other} -> told(events)
    after
      0 -> Enum.reverse(events)
    end
  end

  # The numbers of the last state, without the header, which has seconds.
  defp weights(dir) do
    <<length::little-64, _header::binary-size(length), numbers::binary>> =
      File.read!(Path.join(dir, "last.safetensors"))

    numbers
  end

  test "a run whose world hung once goes on from its saved state, to the bits of an uninterrupted run" do
    dir = tmp_dir!("again")
    [whole, parts, ends] = for name <- ~w(whole parts ends), do: Path.join(dir, name)
    opts = @small ++ [env: HangsOnce, pressure: [rows: @soon]]
    HangsOnce.begin(0)
    {{:ok, report}, []} = run(PPO, [out: whole] ++ opts)
    # In the fourth of six updates.
    HangsOnce.begin(110)
    {{:ok, again}, [decided]} = run(PPO, [out: parts] ++ opts)
    assert {again.steps, again.updates} == {report.steps, report.updates}
    assert weights(parts) == weights(whole)
    assert {decided.failed, decided.decision, decided.by} == {:deadline, :retry, :elixir}
    assert decided.reason =~ "missed its deadline"

    # Without a saved state the same again would be the same.
    HangsOnce.begin(5)
    {{:error, error}, [decided]} = run(PPO, [out: ends] ++ opts)
    assert {error.kind, decided.decision} == {:deadline, :stop}
  end

  describe "a run of imitation" do
    setup do
      dir = tmp_dir!("again-trainer")
      {:ok, games} = CartPole.demonstrations(games: 4, steps: 60)
      {:ok, corpus} = CartPole.corpus(games, into: Path.join(dir, "corpus"))
      small = [backbone: :mlp, hidden_sizes: [8], steps: 4, batch_size: 8, window_size: 8]
      %{opts: small ++ [corpus: corpus, out: Path.join(dir, "run"), device: {:cuda, 9_999}]}
    end

    test "takes another device only if it is allowed, and says so", %{opts: opts} do
      {{:error, error}, [decided]} = run(Trainer, opts)
      assert {error.kind, decided.failed, decided.decision} == {:unavailable, :device, :stop}

      {{:ok, report}, [decided]} = run(Trainer, opts ++ [pressure: [other_device: :cpu]])
      assert {report.stopped, report.steps} == {:finished, 4}
      assert {decided.decision, decided.device} == {:other_device, :cpu}
      assert decided.reason =~ "cuda" or decided.reason =~ "CUDA"
    end

    test "that has saved a state goes on from it on the other device", %{opts: opts} do
      here = Keyword.put(opts, :device, :cpu)
      {{:ok, first}, []} = run(Trainer, here)
      # A resumed run whose device is gone.
      more = [steps: 6, decay_steps: 4, device: {:cuda, 9_999}, pressure: [other_device: :cpu]]
      resumed = [out: opts[:out], resume: true] ++ more
      {{:ok, report}, [decided]} = run(Trainer, resumed)
      assert {first.steps, report.steps, decided.decision} == {4, 6, :other_device}

      # The options of another attempt are those that a resumed run may have.
      more = [steps: 8, decay_steps: 6, backbone: :mlp, machine: [threads: 1], progress: nil]
      again = Settings.again(Keyword.merge(here, more), true, :cpu)

      assert Enum.sort(Keyword.keys(again)) ==
               ~w(corpus decay_steps device out progress resume steps threads)a

      {{:ok, report}, []} = run(Trainer, Keyword.delete(again, :progress))
      assert report.steps == 8
    end

    test "refuses wrong options of decisions before it starts", %{opts: opts} do
      assert_raise ArgumentError, ~r/unknown option :device/, fn ->
        Trainer.start_link(opts ++ [pressure: [device: :cpu]])
      end
    end
  end

  describe "the process of a run" do
    # A run whose attempts have these outcomes, one after the other; `:never` has none.
    defp fake(outcomes, opts) do
      {:ok, left} = Agent.start_link(fn -> outcomes end)

      start = fn ref ->
        run = self()
        event = fn name -> send(run, {:sconce, ref, {:event, %{event: name, step: 1}}}) end

        case Agent.get_and_update(left, fn [next | left] -> {next, left} end) do
          :never ->
            event.(:resumed)

          {how, value} ->
            for message <- [:start, :checkpoint], do: event.(message)
            send(run, {:sconce, ref, {how, value}})
        end

        {:ok, nil, fn -> send(opts[:test], :over) end}
      end

      %Run{
        settings: %{
          out: tmp_dir!("again-fake"),
          progress: &send(opts[:test], {:told, &1}),
          callback: nil
        },
        kind: "test",
        tag: :test,
        start: start,
        named: & &1,
        complete: & &1,
        pressure: Pressure.new(:train, opts[:pressure] || []),
        again: fn saved?, device ->
          send(opts[:test], {:again, saved?, device})
          start
        end
      }
      |> Run.start_link([])
    end

    @late {:error, %Error{kind: :deadline, op: :train}}
    @gone {:error, %Error{kind: :unavailable, op: :train, details: %{cause: "driver"}}}

    test "retries as often as the table says, and then ends with the last error" do
      {:ok, run} = fake([@late, @late, @late], test: self(), pressure: [rows: @soon])
      assert Run.await(run, 5_000, :train) == @late
      assert for(event <- told([]), do: event.decision) == [:retry, :retry, :stop]
      for _ <- 1..2, do: assert_received({:again, true, nil})
      refute_received {:again, _, _}
      # Each attempt has been cleaned up.
      for _ <- 1..3, do: assert_received(:over)
    end

    test "goes on with its result after a retry, and stays on the other device" do
      rows = %{{:device, :train} => [other_device: [], retry: [backoff_ms: 0], stop: []]}
      own = [rows: rows, other_device: :cpu]
      {:ok, run} = fake([@gone, @gone, {:ok, %{steps: 2}}], test: self(), pressure: own)
      assert Run.await(run, 5_000, :train) == {:ok, %{steps: 2}}
      assert for(event <- told([]), do: event.decision) == [:other_device, :retry]
      for _ <- 1..2, do: assert_received({:again, true, :cpu})
    end

    test "that is stopped between two attempts ends with the error" do
      rows = %{{:deadline, :train} => [retry: [backoff_ms: 600_000], stop: []]}
      {:ok, run} = fake([@late, :never], test: self(), pressure: [rows: rows])
      assert_receive {:told, %{event: :pressure, decision: :retry}}
      assert Run.info(run, :train).status == :running
      assert Run.stop(run, :train) == :ok
      assert Run.await(run, 5_000, :train) == @late
      refute_received {:again, _, _}
    end

    test "makes a decision of the native side the same event" do
      {:ok, run} = fake([:never], test: self())
      ref = :sys.get_state(run).ref
      native = %{event: :out_of_memory, step: 7, micro_batch: 16, bytes: nil, memory_limit: nil}
      send(run, {:sconce, ref, {:event, native}})
      assert_receive {:told, ^native}
      assert_receive {:told, %{event: :pressure} = event}

      assert {event.failed, event.decision, event.size, event.by} ==
               {:memory, :smaller, 16, :native}

      send(run, {:sconce, ref, {:event, %{event: :grown, step: 23, micro_batch: 32}}})
      assert_receive {:told, %{event: :grown}}
      assert_receive {:told, %{event: :pressure} = event}
      assert {event.failed, event.decision, event.size, event.by} == {nil, :larger, 32, :native}
    end
  end
end

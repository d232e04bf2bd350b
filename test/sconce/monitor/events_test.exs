defmodule Sconce.Monitor.EventsTest do
  # Not async: `:telemetry` may be a fake.
  use ExUnit.Case, async: false

  alias Sconce.Monitor
  alias Sconce.Monitor.{Catalogue, Events, Vm}
  alias Sconce.Monitor.Snapshot.{Histogram, Slot}

  doctest Events

  setup do
    test = self()
    handler = fn name, measured, metadata, _ -> send(test, {:told, name, measured, metadata}) end
    if Sconce.Events.telemetry?(), do: attach(handler), else: fake(handler)
    :ok
  end

  defp attach(handler) do
    id = {__MODULE__, make_ref()}
    # `apply` avoids a compiler warning in a host without `:telemetry`.
    :ok = apply(:telemetry, :attach_many, [id, Events.telemetry_names(), handler, nil])
    on_exit(fn -> apply(:telemetry, :detach, [id]) end)
  end

  defp fake(handler) do
    :persistent_term.put(__MODULE__, handler)

    create(
      :telemetry,
      quote do
        def list_handlers([:sconce, :monitor]), do: [:one]

        def execute(name, measured, metadata),
          do: :persistent_term.get(unquote(__MODULE__)).(name, measured, metadata, nil)
      end
    )

    on_exit(fn -> :persistent_term.erase(__MODULE__) end)
  end

  defp create(module, body) do
    Module.create(module, body, Macro.Env.location(__ENV__))

    on_exit(fn ->
      :code.delete(module)
      :code.purge(module)
    end)
  end

  defp slot(kind, name, value),
    do: %Slot{kind: kind, name: name, unit: "", help: "", value: value}

  test "each second has all figures of the VM, and those of the app by name" do
    {:ok, counter} = Monitor.counter("events_test_total", labels: [stage: "a"])
    :ok = Monitor.add(counter, 3)
    send(Vm, :sample)
    assert_receive {:told, [:sconce, :monitor, :vm], measured, %{}}, 5_000
    assert measured.decisions_total >= 0 and measured.memory_resident_bytes > 0
    assert is_integer(measured.decision_seconds_count)
    name = ~s(events_test_total{stage="a"})
    assert_receive {:told, [:sconce, :monitor, :app], %{value: 3}, %{name: ^name}}, 5_000
  end

  test "servings and cards have their labels, and unknown values are left out" do
    Events.tell([
      slot(:gauge, ~S(sconce_serving_waiting{serving="my \"one\" \\ two"}), 4.0),
      slot(:gauge, ~s(sconce_device_power_watts{device="cuda:1"}), 230.0),
      slot(:gauge, ~s(sconce_device_clock_hertz{device="cuda:1"}), nil),
      slot(:gauge, ~s(sconce_leader_term{leader=":a",leads="b@c"}), 7.0),
      slot(:gauge, ~s(sconce_store_ram_bytes{store="/a"}), 8.0),
      slot(:counter, ~s(sconce_bot_late_total{bot="B"}), 9),
      slot(:histogram, "app_times", %Histogram{sum: 30, counts: [{1, 10}, {20, 1}]}),
      slot(:text, "note", "words")
    ])

    assert_receive {:told, [:sconce, :monitor, :serving], %{waiting: 4.0}, metadata}
    assert metadata == %{serving: ~S(my "one" \ two)}
    assert_receive {:told, [:sconce, :monitor, :device], device, %{device: "cuda:1"}}
    assert device == %{power_watts: 230.0}
    assert_receive {:told, [:sconce, :monitor, :leader], %{term: 7.0}, leader}
    assert leader == %{leader: ":a", leads: "b@c"}
    assert_receive {:told, [:sconce, :monitor, :store], %{ram_bytes: 8.0}, %{store: "/a"}}
    assert_receive {:told, [:sconce, :monitor, :bot], %{late_total: 9}, %{bot: "B"}}
    assert_receive {:told, [:sconce, :monitor, :app], times, %{name: "app_times"}}
    assert times == %{count: 11, p50: 1.0, p95: 20.0, p99: 20.0, p999: 20.0}
    refute_received {:told, [:sconce, :monitor, :app], _words, _metadata}
  end

  test "a low clock is an event after five seconds under load, and its end too" do
    told = fn counts, reasons, load ->
      Events.throttled(%{"cuda:0" => {reasons, load}}, counts)
    end

    # Without load nothing is lost.
    counts = Enum.reduce(1..9, %{}, fn _second, counts -> told.(counts, [:heat], 10) end)
    refute_received {:told, [:sconce, :monitor, :throttle], _measured, _metadata}
    counts = Enum.reduce(1..4, counts, fn _second, counts -> told.(counts, [:heat], 99) end)
    refute_received {:told, [:sconce, :monitor, :throttle], _measured, _metadata}
    counts = Enum.reduce(1..3, counts, fn _second, counts -> told.(counts, [:heat], 99) end)
    assert_received {:told, [:sconce, :monitor, :throttle], %{throttled: 1}, metadata}
    assert metadata == %{device: "cuda:0", reasons: [:heat]}
    refute_received {:told, [:sconce, :monitor, :throttle], _measured, _metadata}
    told.(counts, [], 99)
    assert_received {:told, [:sconce, :monitor, :throttle], %{throttled: 0}, %{reasons: []}}
  end

  test "definitions name each figure of the catalogue, with its unit" do
    if not Code.ensure_loaded?(Telemetry.Metrics) do
      assert Events.definitions() == []

      create(
        Telemetry.Metrics,
        quote do
          def last_value(name, opts), do: Map.new([{:name, name} | opts])
        end
      )
    end

    definitions = Events.definitions()
    names = Enum.map(definitions, & &1.name)
    assert [:sconce, :monitor, :vm, :decision_seconds_p99] in names
    assert [:sconce, :monitor, :serving, :waiting] in names
    assert names == Enum.uniq(names)
    histograms = Enum.count(Catalogue.all(), &(&1.kind == :histogram))
    assert length(names) == length(Catalogue.all() -- Catalogue.session()) + 4 * histograms
    time = Enum.find(definitions, &(List.last(&1.name) == :decision_seconds_p99))
    assert time.unit == :nanosecond
  end
end

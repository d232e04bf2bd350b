defmodule Sconce.PressureTest do
  use ExUnit.Case, async: true

  alias Sconce.{Error, Events, Pressure}
  alias Sconce.Pressure.Table

  doctest Pressure

  defp full(op \\ :embed), do: %Error{kind: :out_of_memory, op: op}

  # Work with room for `most`, whose calls arrive at the test.
  defp room(most) do
    fn size ->
      send(self(), {:tried, size})
      if size <= most, do: {:ok, size}, else: {:error, full()}
    end
  end

  defp tried, do: Enum.reverse(tried([]))

  defp tried(sizes) do
    receive do
      {:tried, size} -> tried([size | sizes])
    after
      0 -> sizes
    end
  end

  # Each decision of `n` failures in a row.
  defp decisions(pressure, failed, n) do
    {decisions, _pressure} =
      Enum.map_reduce(1..n, pressure, fn _, p -> Pressure.decide(p, failed) end)

    decisions
  end

  describe "the table" do
    test "has each pair of a failure and a place at most once, and known answers that end" do
      rows = Pressure.table()
      keys = for row <- rows, do: {row.failed, row.where}
      assert Enum.uniq(keys) == keys

      for {failed, where} <- keys,
          do: assert(failed in Table.failures() and where in Table.places())

      for row <- rows do
        {last, _options} = List.last(row.answers)
        assert last in [:stop, :skip], inspect(row)
        assert is_binary(row.by) and is_boolean(row.fixed)
      end
    end

    test "is in the documentation of the module, row by row" do
      {:docs_v1, _, _, _, %{"en" => text}, _, _} = Code.fetch_docs(Pressure)

      for row <- Pressure.table(),
          do: assert(text =~ "| `#{inspect(row.failed)}` | `#{inspect(row.where)}` |")
    end

    test "is in the guide as it is" do
      assert File.read!("guides/trouble.livemd") =~ Table.docs()
    end

    test "answers in its order, each answer as often as it may" do
      pressure = Pressure.new(:train, other_device: :cpu)

      assert decisions(pressure, :device, 5) ==
               [{:retry, 500}, {:retry, 1_000}, {:other_device, :cpu}, :stop, :stop]

      assert decisions(Pressure.new(:train), :device, 3) == [
               {:retry, 500},
               {:retry, 1_000},
               :stop
             ]

      assert decisions(Pressure.new(:store), :memory, 2) == [{:retry, 0}, :stop]
      cold = Pressure.new(:store, rows: %{{:memory, :store} => [:cold, retry: [times: 1]]})
      assert decisions(cold, :memory, 3) == [:cold, {:retry, 500}, :stop]
      assert decisions(Pressure.new(:play), :deadline, 2) == [:skip, :skip]
    end

    test "waits at most as long as it says, however often it retries" do
      waits = decisions(Pressure.new(:network), :deadline, 200)
      assert [{:retry, 500}, {:retry, 1_000}, {:retry, 2_000} | _] = waits
      assert List.last(waits) == {:retry, 30_000}
    end

    test "stops at failures that it has no row for" do
      assert decisions(Pressure.new(:play), :memory, 1) == [:stop]

      assert {:stop, _} =
               Pressure.decide(Pressure.new(:train), %Error{kind: :corrupt, op: :train})
    end

    test "leaves out answers that do not apply" do
      pressure = Pressure.new(:train, other_device: :cpu)
      assert {{:other_device, :cpu}, _} = Pressure.decide(pressure, :device, [:retry])
    end

    test "takes rows of the user, for their place alone" do
      rows = %{{:device, :train} => [:stop], {:memory, :serve} => [retry: [times: 3], stop: []]}
      assert decisions(Pressure.new(:train, rows: rows), :device, 1) == [:stop]
      assert [{:retry, 500} | _] = decisions(Pressure.new(:train, rows: rows), :deadline, 1)

      assert [{:retry, 500}, {:retry, 1_000}, _, :stop] =
               decisions(Pressure.new(:serve, rows: rows), :memory, 4)
    end

    test "refuses rows that are wrong or that cannot be replaced" do
      for {rows, text} <- [
            {%{{:memory, :train} => [:shrink]}, "unknown answer of option :rows :shrink"},
            {%{{:memory, :train} => []}, "a list of answers"},
            {%{{:memory, :train} => [retry: [times: -1]]}, "times"},
            {%{{:memory, :train} => [retry: [often: 1]]}, "unknown option :often"},
            {%{{:disk, :train} => [:stop]}, "{failed, where}"},
            {%{{:deadline, :play} => [:stop]}, "a row that can be replaced"},
            {[:stop], "a map"},
            {5, "a map"}
          ] do
        message = assert_raise(ArgumentError, fn -> Pressure.new(:train, rows: rows) end).message

        assert message =~ text, message
      end

      assert_raise ArgumentError, ~r/unknown place :here/, fn -> Pressure.new(:here) end
    end
  end

  describe "what failed" do
    test "follows from the kind and the details of the error" do
      gone = %{what: "cuda:1", cause: "driver", reason: "no driver"}
      cuda = %{what: "tensor", reason: "DriverError(CUDA_ERROR_ILLEGAL_ADDRESS)"}

      for {kind, details, failed} <- [
            {:out_of_memory, %{}, :memory},
            {:deadline, %{}, :deadline},
            {:unavailable, gone, :device},
            {:unavailable, %{what: "the process of a world", reason: "has ended"}, nil},
            {:mismatch, cuda, :device},
            {:mismatch, %{what: "tensor", reason: "shapes"}, nil},
            {:panic, %{message: "a bug"}, nil},
            {:io, %{path: "run", reason: "no space"}, nil}
          ],
          do: assert(Pressure.failed(%Error{kind: kind, op: :train, details: details}) == failed)
    end
  end

  describe "a size" do
    setup do
      %{opts: [rows: %{{:memory, :store} => [smaller: [floor: 4], stop: []]}, grow_after: 2]}
    end

    test "is halved to the floor and then ends", %{opts: opts} do
      assert {:error, error, _} = Pressure.run(Pressure.new(:store, opts), 100, room(3))
      assert error == full()
      assert tried() == [100, 50, 25, 13, 7, 4]
    end

    test "grows to an eighth below the size that failed, and a trial that fails goes back", %{
      opts: opts
    } do
      work = room(26)

      Enum.reduce(1..15, Pressure.new(:store, opts), fn _, pressure ->
        {:ok, _, pressure} = Pressure.run(pressure, 32, work)
        pressure
      end)

      # 24 is half the way from 16 to 32, and 26 that from 24 to 28, which failed.
      assert tried() == [32, 16, 16, 24, 24, 28, 24, 24] ++ List.duplicate(26, 9)
    end

    test "grows to all of what is wanted when there is room again", %{opts: opts} do
      pressure = Pressure.new(:store, opts ++ [forget_after: 6])
      {:ok, 16, pressure} = Pressure.run(pressure, 64, room(20))

      pressure =
        Enum.reduce(1..12, pressure, fn _, pressure ->
          {:ok, _, pressure} = Pressure.run(pressure, 64, room(1_000))
          pressure
        end)

      assert List.last(tried()) == 64
      assert inspect(pressure) == "#Sconce.Pressure<store>"
    end

    test "does not grow into a size that the memory model refuses", %{opts: opts} do
      fits = Pressure.room([{8, 800}, {16, 1_600}], 2_000)
      pressure = Pressure.new(:store, opts ++ [fits: fits])

      Enum.reduce(1..10, pressure, fn _, pressure ->
        {:ok, _, pressure} = Pressure.run(pressure, 64, room(31))
        pressure
      end)

      # 24 would need 2,400 of 2,000 bytes.
      assert tried() == [64, 32] ++ List.duplicate(16, 10)
    end

    test "that is wanted smaller or larger is followed, but not above what failed", %{opts: opts} do
      {:ok, 10, pressure} = Pressure.run(Pressure.new(:store, opts), 10, room(16))
      {:ok, 16, pressure} = Pressure.run(pressure, 64, room(16))
      {:ok, 5, pressure} = Pressure.run(pressure, 5, room(16))
      {:ok, 16, _pressure} = Pressure.run(pressure, 32, room(16))
      assert tried() == [10, 64, 32, 16, 5, 32, 16]
    end
  end

  describe "run" do
    test "retries, drops to the cold tier, and takes the other device only if it is allowed" do
      rows = %{
        {:memory, :store} => [retry: [backoff_ms: 0], cold: [], other_device: [], stop: []]
      }

      work = fn 8, place ->
        send(self(), {:tried, place})
        {:error, full()}
      end

      {:error, _, _} = Pressure.run(Pressure.new(:store, rows: rows), 8, work)
      assert tried() == [nil, nil, :cold]
      {:error, _, _} = Pressure.run(Pressure.new(:store, rows: rows, other_device: :cpu), 8, work)
      assert tried() == [nil, nil, :cold, {:device, :cpu}]
    end

    test "tells each decision as the documented event" do
      test = self()
      rows = %{{:memory, :store} => [retry: [backoff_ms: 0], smaller: [], stop: []]}
      progress = &send(test, {:told, &1})
      pressure = Pressure.new(:store, rows: rows, grow_after: 1, progress: progress)
      {:ok, 2, _pressure} = Pressure.run(pressure, 4, room(2))
      told = for _ <- 1..3, do: receive(do: ({:told, event} -> event))

      assert for(event <- told, do: {event.decision, event.size}) == [
               retry: nil,
               smaller: 2,
               larger: 3
             ]

      %{measurements: measured, metadata: metadata} =
        Enum.find(Events.all(), &(&1.name == :pressure))

      for event <- told do
        fields = event |> Map.delete(:event) |> Map.keys() |> Enum.sort()
        assert fields == Enum.sort(Keyword.keys(measured ++ metadata))
        assert {event.where, event.by} == {:store, :elixir}
      end
    end

    test "passes an error that the table does not have on, without an event" do
      test = self()
      error = %Error{kind: :corrupt, op: :load}
      pressure = Pressure.new(:store, progress: &send(test, {:told, &1}))
      assert {:error, ^error, _} = Pressure.run(pressure, 1, fn 1 -> {:error, error} end)
      refute_received {:told, _}
    end

    test "goes on when its progress function crashes" do
      rows = %{{:memory, :store} => [:cold]}
      pressure = Pressure.new(:store, rows: rows, progress: fn _ -> raise "told" end)
      work = fn 1, place -> if place == :cold, do: {:ok, :cold}, else: {:error, full()} end

      log =
        ExUnit.CaptureLog.capture_log(fn ->
          assert {:ok, :cold, _pressure} = Pressure.run(pressure, 1, work)
        end)

      assert log =~ "told"
    end

    test "refuses work that returns something else" do
      assert_raise ArgumentError, ~r/the result of work/, fn ->
        Pressure.run(Pressure.new(:store), 1, fn 1 -> :done end)
      end
    end
  end
end

defmodule Sconce.Evolve.IslandTest do
  use ExUnit.Case, async: false

  alias Sconce.Evolve.{Archive, Island, Population, Search}
  alias Sconce.Serving.Group
  alias Sconce.Test.{Cluster, Islands}

  import Islands, only: [archive: 1, search: 1]

  doctest Island

  defmodule Fake do
    # A member of a group that gives one answer.
    use GenServer

    def start_link(args), do: GenServer.start_link(__MODULE__, args)

    @impl true
    def init({group, answer}) do
      _scope = Sconce.Serving.Group.join({Island, group}, self())
      {:ok, answer}
    end

    @impl true
    def handle_call(:elites, _from, answer), do: {:reply, answer, answer}

    @impl true
    def handle_info(_hello, answer), do: {:noreply, answer}
  end

  defp until(condition, tries \\ 600, pause_ms \\ 50) do
    cond do
      condition.() -> :ok
      tries == 0 -> flunk("waited in vain")
      true -> Process.sleep(pause_ms) && until(condition, tries - 1, pause_ms)
    end
  end

  test "islands of two nodes exchange elites; one that dies is left out, and one that joins gets all" do
    Cluster.start!()
    {node, os_pid} = Cluster.node!()
    group = {:islands, System.pid()}
    own = search(1)
    {:ok, island} = Island.start_link(own, group: group, every: 5, migrants: 16, seed: 1)
    far = :erpc.call(node, Islands, :start, [group, 2])
    until(fn -> Island.info(island).stored > 0 and Island.info(far).stored > 0 end)

    Cluster.kill(os_pid)
    until(fn -> Island.info(far) == {:error, %Sconce.Error{kind: :cancelled, op: :island}} end)
    before = Island.info(island).generation
    until(fn -> Island.info(island).generation > before + 10 end)

    {:ok, late} = Island.start_link(search(3), group: group, every: 5, generations: 5, seed: 3)
    until(fn -> Island.info(late).received > 0 end)
    whole = archive(own.spec)
    assert Island.merge(group, whole) == {:ok, 2}
    {:ok, merged} = Archive.stats(whole)
    {:ok, one} = Archive.stats(search(9).archive)
    assert merged.elites > one.elites
    for own <- [island, late], do: GenServer.stop(own)
  end

  defmodule Silent do
    # A member of a group that takes migrants and never answers by itself.
    use GenServer

    @impl true
    def init({group, test}) do
      _scope = Sconce.Serving.Group.join({Island, group}, self())
      {:ok, test}
    end

    @impl true
    def handle_info({:migrants, elites, from}, test) do
      send(test, {:migrants, elites, from})
      {:noreply, test}
    end

    def handle_info(_hello, test), do: {:noreply, test}
  end

  test "an island that does not answer gets four messages, and more when it does" do
    group = make_ref()
    {:ok, silent} = GenServer.start_link(Silent, {group, self()})
    opts = [group: group, every: 1, migrants: 8, generations: 12, seed: 1]
    {:ok, island} = Island.start_link(search(1), opts)
    assert :ok = Island.await(island)
    info = Island.info(island)
    # The first round may have no elite yet.
    assert info.sent == 32
    assert info.withheld in [56, 64]
    for _ <- 1..4, do: assert_received({:migrants, _elites, ^island})
    refute_received {:migrants, _elites, _island}

    # A newcomer that asks for all gets what waits once it has answered.
    send(island, {:hello, silent})
    _info = Island.info(island)
    refute_received {:migrants, _elites, _island}
    send(island, {:stored, silent})
    assert_receive {:migrants, [_solutions, objectives, _measures], ^island}
    {:ok, %{elites: elites}} = Archive.stats(:sys.get_state(island).search.archive)
    assert byte_size(objectives) == 8 * elites
    for pid <- [island, silent], do: GenServer.stop(pid)
  end

  test "messages that arrive during a round are served before the next one" do
    own = search(5)
    opts = %{group: make_ref(), every: 1000, migrants: 1, generations: 2000, seed: 5}
    {:ok, state} = Island.init({own, opts})
    assert_received :round
    island = self()

    Task.start_link(fn ->
      until(fn -> match?({:error, %{kind: :busy}}, Archive.stats(own.archive)) end, 60_000, 0)
      send(island, :meanwhile)
    end)

    assert {:noreply, %{generation: 1000}} = Island.handle_info(:round, state)
    assert {:messages, [:meanwhile, :round]} = Process.info(self(), :messages)
  end

  test "a merge goes on after islands that fail, and names them" do
    group = make_ref()
    late = %Sconce.Error{kind: :deadline, op: :island, details: %{what: "x", deadline_ms: 1}}
    misfit = {:ok, ["", <<1.0::float-64-little>>, ""]}
    # One joins before the island, and one after it: members have no order.
    own = search(7)
    refused = start_supervised!({Fake, {group, misfit}}, id: :refused)
    {:ok, island} = Island.start_link(own, group: group, generations: 1)
    assert :ok = Island.await(island)
    silent = start_supervised!({Fake, {group, {:error, late}}}, id: :silent)

    whole = archive(own.spec)

    assert {:error, %Sconce.Error{op: :merge, details: details} = error} =
             Island.merge(group, whole)

    assert details.merged == 1
    assert details.failed |> Enum.map(&elem(&1, 0)) |> Enum.sort() == Enum.sort([refused, silent])
    for pid <- [refused, silent], do: assert(Exception.message(error) =~ inspect(pid))
    {:ok, merged} = Archive.stats(whole)
    {:ok, one} = Archive.stats(own.archive)
    assert merged.elites == one.elites and one.elites > 0
    GenServer.stop(island)
  end

  test "an island is in its group again after a restart of the groups" do
    group = make_ref()
    {:ok, island} = Island.start_link(search(6), group: group, generations: 1)
    assert :ok = Island.await(island)
    scope = Process.whereis(Group)
    Process.exit(scope, :kill)
    until(fn -> Process.whereis(Group) not in [nil, scope] end)
    until(fn -> Group.members({Island, group}) == [island] end, 100)
    assert Island.merge(group, archive(search(6).spec)) == {:ok, 1}
    GenServer.stop(island)
  end

  test "elites that do not fit are refused, and an island without an archive is named" do
    group = make_ref()
    {:ok, island} = Island.start_link(search(1), group: group, generations: 1)
    assert :ok = Island.await(island)
    send(island, {:migrants, ["", <<1.0::float-64-little>>, ""]})
    until(fn -> Island.info(island).refused == 1 end)
    GenServer.stop(island)

    spec = Population.spec(:cart_pole, hidden_sizes: [4])
    {:ok, plain} = Search.new(spec, :cart_pole, source: :snes, batch: 8)
    assert_raise ArgumentError, ~r/archive/, fn -> Island.start_link(plain, group: group) end
    {:ok, empty} = Archive.new(cells: {:grid, [2]}, ranges: [{0, 1}], solution_size: 1)
    assert Island.merge(group, empty) == {:ok, 0}
  end
end

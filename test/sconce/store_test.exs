defmodule Sconce.StoreTest do
  use ExUnit.Case, async: true
  doctest Sconce.Store

  import Sconce.Test.Scratch

  alias Sconce.{Error, Store}

  defp store(opts \\ []) do
    folder = Path.join(tmp_dir!("store"), "store")
    {:ok, store} = Store.open(folder, opts)
    store
  end

  defp numbers(seed, count),
    do: for(n <- 1..count, into: <<>>, do: <<rem(n * seed, 1000)::32-little>>)

  defp tensor(seed, rows), do: %{data: numbers(seed, rows * 8), shape: {rows, 8}, type: {:u, 32}}

  test "tensors of every type come back" do
    store = store()

    for {kind, bits} = type <- [f: 16, f: 32, f: 64, bf: 16, u: 8, u: 64, s: 8, s: 16, s: 32] do
      data = :binary.copy(<<1, 2, 3, 4, 5, 6, 7, 8>>, 30)
      given = %{data: data, shape: {5, div(240 * 8, bits * 5)}, type: type}
      assert Store.put(store, "#{kind}#{bits}", given, commit: false) == :ok
      assert Store.get(store, "#{kind}#{bits}") == {:ok, given}
    end

    assert Store.put(store, "list", [[1, 2.5], [-3, 4]]) == :ok

    list =
      <<1.0::float-32-little, 2.5::float-32-little, -3.0::float-32-little, 4.0::float-32-little>>

    assert Store.get(store, "list") == {:ok, %{data: list, shape: {2, 2}, type: {:f, 32}}}
  end

  test "rows of many blocks are those of the whole, from RAM and from disk" do
    store = store(ram: 100_000, compressed: 0, block: 4096)
    all = tensor(7, 10_000)
    :ok = Store.put(store, "a", all)

    for _round <- 1..2,
        {first, count} <- [{0, 10_000}, {5, 1}, {127, 3}, {9_990, 10}, {0, 0}, {10_000, 0}] do
      assert {:ok, rows} = Store.get(store, "a", rows: {first, count})
      assert rows.shape == {count, 8}
      assert rows.data == binary_part(all.data, first * 32, count * 32)
    end

    assert {:ok, %{ram_bytes: ram}} = Store.stats(store)
    assert ram <= 100_000
  end

  test "rows of one block refer to it" do
    store = store()
    :ok = Store.put(store, "a", tensor(3, 1000))
    {:ok, rows} = Store.get(store, "a", rows: {10, 500})
    # A binary of its own would have its own bytes.
    assert :binary.referenced_byte_size(rows.data) < 1000
    :ok = Store.put(store, "a", tensor(4, 1000))
    assert rows.data == binary_part(tensor(3, 1000).data, 320, 16_000)
    assert :ok = Store.close(store)
    assert rows.data == binary_part(tensor(3, 1000).data, 320, 16_000)
  end

  test "wrong data, names and types are named" do
    store = store()
    short = %{data: <<1, 2, 3>>, shape: {2, 2}, type: {:u, 8}}
    assert {:error, %Error{kind: :mismatch} = error} = Store.put(store, "a", short)

    assert Exception.message(error) =~
             ~s(tensor "a": expected bytes of the shape {2, 2}, got 3 bytes)

    assert {:error, %Error{kind: :out_of_range}} = Store.put(store, "", [1])

    assert {:error, %Error{kind: :out_of_range}} =
             Store.put(store, String.duplicate("n", 513), [1])

    assert {:error, %Error{kind: :not_found}} = Store.get(store, "a")

    assert_raise ArgumentError, ~r/name: expected text in UTF-8/, fn ->
      Store.get(store, <<255>>)
    end

    wrong = %{data: <<1>>, shape: {1}, type: {:f, 8}}
    assert_raise ArgumentError, ~r/type of tensor "a"/, fn -> Store.put(store, "a", wrong) end

    assert_raise ArgumentError, ~r/tensors: expected/, fn ->
      Store.put_all(store, [{:a, :b, :c}])
    end

    assert_raise ArgumentError, ~r/option :block/, fn -> Store.open("x", block: 1) end
  end

  test "cold blocks lose something only with permission of the store and of the tensor" do
    folder = Path.join(tmp_dir!("store"), "store")
    wave = for n <- 1..6000, do: :math.sin(n)
    floats = for x <- wave, into: <<>>, do: <<x::float-32-little>>
    weights = %{data: floats, shape: {100, 60}, type: {:f, 32}}
    {:ok, store} = Store.open(folder, block: 4096)
    :ok = Store.put(store, "lossy", weights, lossy: true)
    :ok = Store.put_all(store, %{"exact" => Enum.reverse(wave)})
    {:ok, exact} = Store.get(store, "exact")
    :ok = Store.put(store, "whole numbers", tensor(7, 2000), lossy: true)
    # So that a compaction rewrites the pack.
    :ok = Store.put(store, "waste", for(n <- 1..1000, do: :math.cos(n)))
    :ok = Store.delete(store, "waste")
    :ok = Store.close(store)

    # Nothing of a store that was just opened is in RAM.
    {:ok, store} = Store.open(folder, block: 4096)
    {:ok, freed} = Store.compact(store, share: 1.0)
    assert freed > 0
    assert Store.get(store, "lossy") == {:ok, weights}
    assert {:ok, %{lossy: true, lossy_blocks: 0, blocks: blocks}} = Store.info(store, "lossy")
    refute inspect(store) =~ "lossy"
    :ok = Store.close(store)

    {:ok, store} = Store.open(folder, block: 4096, cold: :int8)
    {:ok, freed} = Store.compact(store)
    assert freed > 12_000
    assert {:ok, %{lossy: true, lossy_blocks: ^blocks}} = Store.info(store, "lossy")
    {:ok, read} = Store.get(store, "lossy")
    assert read != weights
    assert %{shape: {100, 60}, type: {:f, 32}} = read
    read = for <<x::float-32-little <- read.data>>, do: x
    assert Enum.zip_with(wave, read, &abs(&1 - &2)) |> Enum.max() <= 1 / 250
    assert Store.get(store, "exact") == {:ok, exact}
    assert Store.get(store, "whole numbers") == {:ok, tensor(7, 2000)}
    assert {:ok, %{lossy: false, lossy_blocks: 0}} = Store.info(store, "exact")

    assert {:ok, %{lossy_blocks: ^blocks, quantised: ^blocks, lossy: ^blocks}} =
             Store.stats(store)

    assert inspect(store) =~ "#{blocks} lossy blocks>"
    assert Store.verify(store) == {:ok, []}

    # The same numbers put again are exact.
    :ok = Store.put(store, "lossy", weights, lossy: true)
    assert Store.get(store, "lossy") == {:ok, weights}
    assert {:ok, %{lossy_blocks: 0}} = Store.stats(store)
  end

  test "one writes, others read, and a closed store says so" do
    store = store()
    assert {:error, %Error{kind: :busy}} = Store.open(store.path)
    {:ok, reader} = Store.open(store.path, read_only: true)
    assert {:error, %Error{kind: :unavailable}} = Store.put(reader, "a", [1])
    :ok = Store.put(store, "a", [1])
    assert {:error, %Error{kind: :not_found}} = Store.get(reader, "a")
    assert Store.refresh(reader) == :ok
    assert {:ok, %{shape: {1}}} = Store.get(reader, "a")
    assert inspect(reader) == "#Sconce.Store<1 tensor · 4 B · 4 B in RAM · 44 B on disk>"
    :ok = Store.close(store)
    assert inspect(store) == "#Sconce.Store<closed>"
    assert {:error, %Error{kind: :not_found}} = Store.get(store, "a")
    assert {:ok, again} = Store.open(store.path)
    assert {:ok, %{shape: {1}}} = Store.get(again, "a")
    assert {:error, %Error{kind: :not_found}} = Store.open(store.path <> "-none", read_only: true)
  end

  test "a damaged block is named, others are served, and putting it again mends it" do
    store = store(compress: false)
    for n <- 1..5, do: :ok = Store.put(store, "t#{n}", tensor(n, 100), commit: false)
    :ok = Store.close(store)
    [pack] = Path.wildcard(Path.join(store.path, "packs/*"))
    bytes = File.read!(pack)
    at = :binary.match(bytes, tensor(3, 100).data) |> elem(0)
    <<before::binary-size(at), byte, rest::binary>> = bytes
    File.write!(pack, <<before::binary, Bitwise.bxor(byte, 1), rest::binary>>)

    {:ok, store} = Store.open(store.path)
    assert {:error, %Error{kind: :corrupt} = error} = Store.get(store, "t3")
    assert Exception.message(error) =~ ~s(tensor "t3", block 0, #{pack})
    assert {:ok, [%{tensors: ["t3"], file: "packs/00000000.pack"}]} = Store.verify(store)
    for n <- [1, 2, 4, 5], do: assert(Store.get(store, "t#{n}") == {:ok, tensor(n, 100)})
    :ok = Store.put(store, "t3", tensor(3, 100))
    assert Store.get(store, "t3") == {:ok, tensor(3, 100)}
    assert Store.verify(store) == {:ok, []}
  end

  test "a damaged index is named and replaced by its copy" do
    store = store()
    :ok = Store.put(store, "a", [1])
    :ok = Store.close(store)
    File.write!(Path.join(store.path, "index"), "nothing")
    {:ok, store} = Store.open(store.path)
    assert store.fault =~ "index: "
    assert {:ok, %{shape: {1}}} = Store.get(store, "a")
    :ok = Store.close(store)
    for name <- ["index", "index.copy"], do: File.write!(Path.join(store.path, name), "nothing")
    assert {:error, %Error{kind: :corrupt}} = Store.open(store.path)
  end

  test "many processes put and read at once" do
    store = store(ram: 50_000)

    1..8
    |> Enum.map(fn n ->
      Task.async(fn ->
        for step <- 1..20 do
          name = "#{n}.#{rem(step, 3)}"
          :ok = Store.put(store, name, tensor(n * 100 + step, 200), commit: rem(step, 10) == 0)
          assert Store.get(store, name) == {:ok, tensor(n * 100 + step, 200)}
        end
      end)
    end)
    |> Task.await_many(60_000)

    assert {:ok, names} = Store.names(store)
    assert length(names) == 24
    assert Store.verify(store) == {:ok, []}
  end

  test "a store that nothing refers to is closed" do
    folder = Path.join(tmp_dir!("store"), "store")

    Task.await(
      Task.async(fn ->
        {:ok, store} = Store.open(folder)
        :ok = Store.put(store, "a", [1])
      end)
    )

    assert open_soon(folder, 500)
  end

  # The process that held the store is gone; its memory goes soon after.
  defp open_soon(_folder, 0), do: false

  defp open_soon(folder, times) do
    case Store.open(folder) do
      {:ok, _store} ->
        true

      {:error, %Error{kind: :busy}} ->
        Process.sleep(20)
        open_soon(folder, times - 1)
    end
  end
end

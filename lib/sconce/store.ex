defmodule Sconce.Store do
  alias Sconce.Compress.Numbers
  alias Sconce.{Error, Native, Options, Pressure, Tensor}
  alias Sconce.Native.Call
  alias Sconce.Store.{Catalogue, Handles}

  @open Catalogue.schema(:open)
  @put Catalogue.schema(:put)
  @commit Catalogue.schema(:commit)
  @get Catalogue.schema(:get)
  @compact Catalogue.schema(:compact)

  @moduledoc """
  Named tensors that outgrow RAM: in RAM, compressed in RAM, and on disk.

      iex> folder = Path.join(System.tmp_dir!(), "sconce-store-\#{System.unique_integer([:positive])}")
      iex> {:ok, store} = Sconce.Store.open(folder, ram: "64MB")
      iex> Sconce.Store.put(store, "weights", [[1, 2, 3], [4, 5, 6]])
      :ok
      iex> {:ok, tensor} = Sconce.Store.get(store, "weights", rows: {1, 1})
      iex> tensor
      %{data: <<4.0::float-32-little, 5.0::float-32-little, 6.0::float-32-little>>, shape: {1, 3}, type: {:f, 32}}
      iex> :ok = Sconce.Store.close(store)
      iex> File.rm_rf!(folder) != []
      true

  A tensor is cut into blocks of whole rows, of about a megabyte. Blocks of the same content lie once, whatever tensors
  they belong to. Small tensors share files.

  ## Tiers

  | tier | holds | limit |
  |---|---|---|
  | RAM | blocks that are in use; a tensor of one block is read without a copy | `:ram` |
  | compressed RAM | blocks that left RAM and get shorter by compression | `:compressed` |
  | disk | all blocks | `:disk` |

  A block that is asked for moves up. The one that leaves is chosen by S3-FIFO (Yang et al. 2023): a scan through
  everything does not push out what is asked for again. Beyond the limit are binaries that a process holds, which keep their
  block, up to 4 MB that wait to be compressed, and the blocks that are being read.

  Blocks are compressed by LZ4, after the bits of their elements were gathered by place if that makes them shorter; a trial
  on a part of each block decides. Weights in bf16 take three quarters, recorded frames of games less than a tenth.

  ## Cold blocks in eight bits

  A store that is opened with `cold: :int8` may lose something, of tensors of type f32, bf16 and f16 that were put with
  `lossy: true`, and of no others. `compact/2`, and a put that reaches the limit of `:disk`, then store their cold blocks,
  which lie on disk only, in eight bits an element where a file gets at least a tenth shorter by it: in groups of 64, 3.8
  times less than uncompressed f32, and 1.9 times less than bf16 and f16.

      iex> folder = Path.join(System.tmp_dir!(), "sconce-store-\#{System.unique_integer([:positive])}")
      iex> {:ok, store} = Sconce.Store.open(folder, cold: :int8, ram: 100, compressed: 0)
      iex> numbers = for n <- 1..64, do: n / 10
      iex> :ok = Sconce.Store.put(store, "logits", numbers, lossy: true)
      iex> :ok = Sconce.Store.put(store, "weights", Enum.reverse(numbers))
      iex> {:ok, _bytes} = Sconce.Store.compact(store)
      iex> {:ok, info} = Sconce.Store.info(store, "logits")
      iex> {info.lossy, info.lossy_blocks}
      {true, 1}
      iex> {:ok, %{data: <<first::float-32-little, _rest::binary>>}} = Sconce.Store.get(store, "logits")
      iex> abs(first - 0.1) <= 6.4 / 250
      true
      iex> store
      #Sconce.Store<2 tensors · 512 B · 0 B in RAM · 408 B on disk · 1 lossy block>
      iex> File.rm_rf!(folder) != []
      true

  A group of elements has one scale: a row of the last dimension if it has 32 to 256 elements, otherwise 64 elements in a
  row. An element is off by at most a share of the largest magnitude in its group: 1/250 in f32, 1/200 in f16, and 1/125 in
  bf16, of which the type itself rounds off a half. A block stays exact that has a number that is not finite, whose numbers
  are too small for the bound, that gets less than a tenth shorter, or that a tensor without `lossy: true`, of another type
  or of other groups uses as well. Blocks in RAM are what was put, until they leave it.

  `info/2` and `stats/1` say how many blocks are not what was put. Such a block has the digest of what is read from then on:
  `verify/1` checks that, and the original numbers, put again, get exact blocks.

  ## Prefetching

  Threads of the store read ahead of a reader whose requests follow a pattern: a step of either sign, a period, or
  frequent successors. How far, depends on whether blocks arrived late or left unused. A reader without a pattern is
  left alone. Each process is a stream of its own, unless `:stream` says otherwise. `stats/1` counts the blocks that were prefetched, and those of them that were asked for.

  ## Safety

  `put/4`, `put_all/3` and `delete/3` return when the change would survive a kill of the VM and a power cut. With
  `commit: false` readers see the change at once, and `commit/1` or `close/1` makes it durable; many changes in one
  commit take as long as one. After a kill the store holds what was committed. A commit is one of all processes: it makes
  durable what others have put until then.

  Every read from disk checks the checksum of its blocks. A damaged block is an error of kind `:corrupt` that names the
  tensor and the file, other tensors are served, and a damaged index is replaced by its copy. `verify/1` checks everything.

  One process of the operating system writes; others may read beside it with `read_only: true`, see `refresh/1`. Within the
  VM any process may use the store. Two callers that put the same name at once: the second one gets an error of kind `:busy`.
  A store that nothing refers to any more is closed, and changes that were not committed are lost.

  Reads and puts without enough memory are tried once more after the garbage of the caller is collected, because its binaries
  may hold blocks, see `Sconce.Pressure`.

  There is no tier in the memory of a card.
  """

  @pressure Pressure.new(:store)

  @enforce_keys [:ref, :path, :fault]
  defstruct @enforce_keys

  @typedoc "A store, its folder, and the fault of a damaged index whose copy was read instead."
  @type t :: %__MODULE__{ref: reference, path: Path.t(), fault: String.t() | nil}

  @typedoc """
  A list of numbers of any nesting (stored as 32-bit floats), a map of `data`, `shape` and `type`, or an `Nx.Tensor`. Types
  are `{:f, 16 | 32 | 64}`, `{:bf, 16}`, `{:u, 8 | 16 | 32 | 64}` and `{:s, 8 | 16 | 32 | 64}`.
  """
  @type tensor :: list | struct | %{data: binary, shape: tuple, type: {atom, pos_integer}}

  @sizes [f: [16, 32, 64], bf: [16], u: [8, 16, 32, 64], s: [8, 16, 32, 64]]
  @types for({kind, sizes} <- @sizes, bits <- sizes, do: {{kind, bits}, "#{kind}#{bits}"})
  @names Map.new(@types)
  @of_name Map.new(@types, fn {type, name} -> {name, type} end)

  @doc """
  Opens the store in a folder, and makes the folder if it is missing.

  #{Options.docs(@open)}

  Kinds of error: `:busy` if another process writes, `:corrupt` if both copies of the index are damaged, `:not_found` if
  a store that is opened with `read_only: true` does not exist, `:io`.

  `put_all/3` has an example.
  """
  @spec open(Path.t(), keyword) :: {:ok, t} | {:error, Error.t()}
  def open(path, opts \\ []) do
    path = path |> Options.path!() |> folder!()
    opts = Options.validate!(opts, @open)

    options =
      opts
      |> Keyword.drop([:prefetch, :prefetch_bytes, :confidence])
      |> Map.new()
      |> Map.put(:prefetch, %{
        depth: opts[:prefetch],
        bytes: opts[:prefetch_bytes],
        confidence: opts[:confidence]
      })

    with {:ok, {ref, fault}} <- Call.run(&Native.store_open(&1, path, options)) do
      Handles.add(ref, path)
      {:ok, %__MODULE__{ref: ref, path: path, fault: fault}}
    end
  end

  defp folder!(""), do: Options.argument!("path", "", "the path of a folder")
  # The working folder of the VM may change while the store is open.
  defp folder!(path), do: Path.expand(path)

  @doc """
  Puts a tensor, which replaces one of the same name.

  #{Options.docs(@put)}

  The name is text of 1 to 512 bytes. Kinds of error: `:mismatch` for data of another length than the shape has, `:busy`
  while another caller puts the same name, `:out_of_range` beyond the `:disk` limit, `:unavailable` in a store that
  is open for reading, `:io`. After an error of the put the former tensor is there; after a
  commit that failed readers see the new one, and the next commit makes it durable.

  `put_all/3` has an example.
  """
  @spec put(t, String.t(), tensor, keyword) :: :ok | {:error, Error.t()}
  def put(store, name, tensor, opts \\ [])

  def put(%__MODULE__{} = store, name, tensor, opts),
    do: put_all(store, [{name, tensor}], opts)

  @doc """
  Puts tensors, given as a map or as pairs of name and tensor, in one commit. After an error some of them may have been put.

  #{Options.docs(@put)}

      iex> folder = Path.join(System.tmp_dir!(), "sconce-store-\#{System.unique_integer([:positive])}")
      iex> {:ok, store} = Sconce.Store.open(folder)
      iex> :ok = Sconce.Store.put_all(store, %{"a" => [1, 2], "b" => [3.5]})
      iex> :ok = Sconce.Store.put(store, "steps", %{data: <<7::64-little>>, shape: {}, type: {:u, 64}}, commit: false)
      iex> :ok = Sconce.Store.commit(store)
      iex> Sconce.Store.names(store)
      {:ok, ["a", "b", "steps"]}
      iex> Sconce.Store.info(store, "steps")
      {:ok, %{shape: {}, type: {:u, 64}, blocks: 1, lossy: false, lossy_blocks: 0}}
      iex> :ok = Sconce.Store.delete(store, "a")
      iex> {:ok, _bytes} = Sconce.Store.compact(store)
      iex> Sconce.Store.verify(store)
      {:ok, []}
      iex> {:ok, stats} = Sconce.Store.stats(store)
      iex> {stats.tensors, stats.bytes}
      {2, 12}
      iex> File.rm_rf!(folder) != []
      true
  """
  @spec put_all(t, %{String.t() => tensor} | [{String.t(), tensor}], keyword) ::
          :ok | {:error, Error.t()}
  def put_all(store, tensors, opts \\ [])

  def put_all(%__MODULE__{ref: ref}, tensors, opts) do
    opts = Options.validate!(opts, @put)

    with {:ok, given} <- given(tensors) do
      put = &Native.store_put(ref, &1, given, opts[:lossy], opts[:commit])
      done(relieved(fn -> Call.run(put) end))
    end
  end

  @doc """
  Returns a tensor, or rows of it. If all rows lie in one block, the data refers to the block without a copy.

  #{Options.docs(@get)}

  Kinds of error: `:not_found`, `:out_of_range` for rows that do not exist, `:corrupt` for a damaged block, `:busy` if
  thousands of calls wait, `:io`.

      iex> folder = Path.join(System.tmp_dir!(), "sconce-store-\#{System.unique_integer([:positive])}")
      iex> {:ok, store} = Sconce.Store.open(folder)
      iex> :ok = Sconce.Store.put(store, "a", [[1, 2], [3, 4]])
      iex> {:error, error} = Sconce.Store.get(store, "a", rows: {1, 2})
      iex> Exception.message(error)
      "get: rows: 3 is outside 0..2"
      iex> File.rm_rf!(folder) != []
      true
  """
  @spec get(t, String.t(), keyword) :: {:ok, tensor} | {:error, Error.t()}
  def get(store, name, opts \\ [])

  def get(%__MODULE__{ref: ref}, name, opts) do
    name!(name)
    opts = Options.validate!(opts, @get)
    opts[:as] == :nx && Tensor.nx!("option :as")
    stream = :erlang.phash2(opts[:stream] || self())

    case relieved(fn -> Call.either(&Native.store_get(ref, &1, name, opts[:rows], stream)) end) do
      {:ok, {type, shape, data}} -> {:ok, tensor(data, type, shape, opts)}
      {:error, _error} = failed -> failed
    end
  end

  @doc """
  Returns the shape, the type and the number of blocks of a tensor; whether it was put with `lossy: true`, and how many of
  its blocks are not what was put.

  `put_all/3` has an example.
  """
  @spec info(t, String.t()) ::
          {:ok,
           %{
             shape: tuple,
             type: {atom, pos_integer},
             blocks: non_neg_integer,
             lossy: boolean,
             lossy_blocks: non_neg_integer
           }}
          | {:error, Error.t()}
  def info(%__MODULE__{ref: ref}, name) do
    with {:ok, {type, shape, blocks, lossy, lossy_blocks}} <-
           Native.store_tensor(ref, name!(name)) do
      {shape, type} = {List.to_tuple(shape), Map.fetch!(@of_name, type)}
      {:ok, %{shape: shape, type: type, blocks: blocks, lossy: lossy, lossy_blocks: lossy_blocks}}
    end
  end

  @doc """
  Returns the names of all tensors, in order.

  `put_all/3` has an example.
  """
  @spec names(t) :: {:ok, [String.t()]} | {:error, Error.t()}
  def names(%__MODULE__{ref: ref}), do: Native.store_names(ref)

  @doc """
  Removes a tensor. Its blocks stay on disk until `compact/2`.

  #{Options.docs(@commit)}

  Kinds of error: `:not_found`, `:busy` while the name is put, and those of `commit/1`.

  `put_all/3` has an example.
  """
  @spec delete(t, String.t(), keyword) :: :ok | {:error, Error.t()}
  def delete(store, name, opts \\ [])

  def delete(%__MODULE__{ref: ref}, name, opts) do
    name!(name)
    opts = Options.validate!(opts, @commit)
    done(Call.run(&Native.store_delete(ref, &1, [name], opts[:commit])))
  end

  @doc """
  Makes durable what was put and deleted with `commit: false`.

  Kinds of error: `:io`; `:unavailable` in a store that is open for reading, and after a failed sync, which leaves open
  what lies on disk: what was committed before is there when the store is opened again.

  `put_all/3` has an example.
  """
  @spec commit(t) :: :ok | {:error, Error.t()}
  def commit(%__MODULE__{ref: ref}), do: done(Call.run(&Native.store_commit(ref, &1)))

  @doc """
  Takes up what another process has committed, in a store that was opened with `read_only: true`.

      iex> folder = Path.join(System.tmp_dir!(), "sconce-store-\#{System.unique_integer([:positive])}")
      iex> {:ok, store} = Sconce.Store.open(folder)
      iex> {:ok, reader} = Sconce.Store.open(folder, read_only: true)
      iex> :ok = Sconce.Store.put(store, "a", [1])
      iex> :ok = Sconce.Store.refresh(reader)
      iex> Sconce.Store.names(reader)
      {:ok, ["a"]}
      iex> File.rm_rf!(folder) != []
      true
  """
  @spec refresh(t) :: :ok | {:error, Error.t()}
  def refresh(%__MODULE__{ref: ref}), do: done(Call.run(&Native.store_refresh(ref, &1)))

  @doc """
  Rewrites files of which little is used, and returns how many bytes were given back to the disk. In a store with
  `cold: :int8` cold blocks of tensors that were put with `lossy: true` lose something, and a file that gets at least a tenth
  shorter by it is rewritten too.

  #{Options.docs(@compact)}

  `put_all/3` has an example.
  """
  @spec compact(t, keyword) :: {:ok, non_neg_integer} | {:error, Error.t()}
  def compact(store, opts \\ [])

  def compact(%__MODULE__{ref: ref}, opts) do
    [share: share] = Options.validate!(opts, @compact)
    Call.run(&Native.store_compact(ref, &1, share))
  end

  @doc """
  Reads every block from disk, checks it, and returns the damaged ones. To mend one, put its tensors again.

  `put_all/3` has an example.
  """
  @spec verify(t) ::
          {:ok,
           [
             %{
               tensors: [String.t()],
               file: String.t(),
               offset: non_neg_integer,
               reason: String.t()
             }
           ]}
          | {:error, Error.t()}
  def verify(%__MODULE__{ref: ref}), do: Call.run(&Native.store_verify(ref, &1))

  @doc """
  Returns what the store holds, and counts since it was opened.

  | key | meaning |
  |---|---|
  | `tensors`, `blocks` | numbers of tensors, and of blocks of different content |
  | `bytes` | bytes of all tensors |
  | `block_bytes`, `stored_bytes` | bytes of the blocks before and after compression |
  | `disk_bytes` | bytes on disk, with blocks that nothing uses any more |
  | `ram_bytes`, `compressed_bytes` | bytes in the tiers |
  | `lossy_blocks` | blocks that are not what was put |
  | `requests`, `in_ram`, `in_compressed` | blocks that were asked for, and those found in the tiers |
  | `prefetched`, `prefetched_used`, `prefetched_late`, `prefetched_unused` | blocks that were prefetched, then asked for, of these too late, and those that left RAM unused |
  | `lossy`, `quantised` | blocks that were asked for and are not what was put, and those that became so |
  | `read_bytes`, `written_bytes` | bytes from and to the disk |
  | `waited_bytes`, `waited_ns` | bytes that readers waited for, and their time |
  | `repeated` | blocks that were put, and were there before |
  | `damaged` | blocks that a check found damaged |

  `put_all/3` has an example.
  """
  @spec stats(t) :: {:ok, %{atom => non_neg_integer}} | {:error, Error.t()}
  def stats(%__MODULE__{ref: ref}), do: Native.store_stats(ref)

  @doc """
  Commits and closes the store. After an error it stays open. Tensors that were read stay valid. A closed store answers with an error of kind `:not_found`.

      iex> folder = Path.join(System.tmp_dir!(), "sconce-store-\#{System.unique_integer([:positive])}")
      iex> {:ok, store} = Sconce.Store.open(folder)
      iex> :ok = Sconce.Store.close(store)
      iex> {:error, error} = Sconce.Store.names(store)
      iex> Exception.message(error)
      "names: store (it was closed) not found"
      iex> File.rm_rf!(folder) != []
      true
  """
  @spec close(t) :: :ok | {:error, Error.t()}
  def close(%__MODULE__{ref: ref}), do: done(Call.run(&Native.store_close(ref, &1)))

  # Without memory the table decides: garbage of this process may hold blocks.
  defp relieved(work) do
    case Pressure.run(@pressure, 1, fn _size -> work.() end) do
      {:ok, value, _pressure} -> {:ok, value}
      {:error, error, _pressure} -> {:error, error}
    end
  end

  defp done({:ok, true}), do: :ok
  defp done({:error, _error} = failed), do: failed

  defp name!(name) when is_binary(name) do
    String.valid?(name) || Options.argument!("name", name, "text in UTF-8")
    name
  end

  defp name!(other), do: Options.argument!("name", other, "text in UTF-8")

  defp given(tensors) when is_map(tensors) and not is_struct(tensors),
    do: given(Map.to_list(tensors))

  defp given(tensors) when is_list(tensors) and length(tensors) >= 0 do
    Enum.reduce_while(tensors, {:ok, []}, fn pair, {:ok, all} ->
      case one(pair) do
        {:ok, own} -> {:cont, {:ok, [own | all]}}
        {:error, _error} = failed -> {:halt, failed}
      end
    end)
  end

  defp given(other),
    do: Options.argument!("tensors", other, "a map or a list of names and tensors")

  defp one({name, tensor}) do
    what = "tensor #{inspect(name!(name))}"

    with {:ok, %{data: data, shape: shape}, type} <- read(tensor, what) do
      {:ok, {name, Map.fetch!(@names, type), Tuple.to_list(shape), data}}
    end
  end

  defp one(other),
    do: Options.argument!("tensors", other, "a map or a list of names and tensors")

  defp read(%{__struct__: Nx.Tensor, type: type} = tensor, what), do: read(tensor, type, what)

  defp read(%{data: _data, shape: _shape, type: type} = tensor, what),
    do: read(tensor, type, what)

  defp read(tensor, what), do: read(tensor, {:f, 32}, what)

  defp read(tensor, type, what) when is_map_key(@names, type) do
    with {:ok, read} <- Numbers.read(tensor, type, what, :put), do: {:ok, read, type}
  end

  defp read(_tensor, type, what),
    do:
      Options.argument!(
        "type of #{what}",
        type,
        "one of #{Enum.map_join(@types, ", ", &elem(&1, 1))} as a tuple, such as {:f, 32}"
      )

  defp tensor(data, name, [_ | _] = shape, opts) do
    type = Map.fetch!(@of_name, name)

    shape =
      case opts[:rows] do
        nil -> shape
        {_first, count} -> [count | tl(shape)]
      end

    form(data, type, List.to_tuple(shape), opts[:as])
  end

  defp tensor(data, name, [], opts), do: form(data, Map.fetch!(@of_name, name), {}, opts[:as])

  defp form(data, type, shape, :binaries), do: %{data: data, shape: shape, type: type}
  defp form(data, type, shape, :nx), do: Tensor.from_binary(data, type, shape)

  defimpl Inspect do
    alias Sconce.Figures

    def inspect(store, _opts) do
      case Sconce.Store.stats(store) do
        {:ok, stats} ->
          sizes = [
            Figures.counted(stats.tensors, "tensor"),
            Figures.size(stats.bytes),
            "#{Figures.size(stats.ram_bytes)} in RAM",
            "#{Figures.size(stats.disk_bytes)} on disk"
            | lossy(stats.lossy_blocks)
          ]

          "#Sconce.Store<#{Enum.join(sizes, " · ")}>"

        {:error, _closed} ->
          "#Sconce.Store<closed>"
      end
    end

    defp lossy(0), do: []
    defp lossy(count), do: [Figures.counted(count, "lossy block")]
  end
end

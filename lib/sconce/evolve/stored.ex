defmodule Sconce.Evolve.Stored do
  @moduledoc false
  # Archives in a `Sconce.Store`.
  #
  # Elites lie in their order, a fixed number of rows in each chunk. A chunk is a tensor of the solutions, objectives and
  # measures of its rows. Each save puts all chunks, of which the store writes those whose content is not there yet, under names of
  # the other one of two sets. The tensor with the name of the archive is put last and says which set is meant. So it never
  # refers to a chunk that is missing. The former set is removed after that is durable.

  alias Sconce.{Error, Lock, Native, Options, Store}
  alias Sconce.Evolve.Archive
  alias Sconce.Native.Call

  # Bytes of a chunk, of which a change of one elite rewrites all. Each costs some 150 bytes in the index of the store.
  @chunk 2 ** 14
  # Bytes of chunks that are put at once, or read before their elites are added.
  @at_once 2 ** 22
  @version 1

  @doc "Puts an archive under a name."
  @spec save(Archive.t(), Store.t(), String.t()) :: :ok | {:error, Error.t()}
  def save(archive, store, name) do
    prefix = prefix!(name)

    with :ok <- fits(archive),
         {:ok, columns} <- Call.in_background(&Native.archive_elites(archive.ref, &1)),
         do: alone(store, name, fn -> replace(store, {name, prefix}, archive, columns) end)
  end

  defp fits(%{options: nil}), do: unavailable("an archive whose options are not known")

  defp fits(%{options: options}) do
    cond do
      options[:learning_rate] < 1 -> unavailable("thresholds of a learning rate below 1")
      match?({:unstructured, _most}, options[:cells]) -> unavailable("cells of :unstructured")
      true -> :ok
    end
  end

  defp unavailable(what) do
    details = %{what: what, reason: "a store has the elites alone; save the archive to a file"}
    {:error, %Error{kind: :unavailable, op: :save, details: details}}
  end

  defp prefix!(name) do
    (is_binary(name) and String.valid?(name) and name != "") ||
      Options.argument!("name", name, "text in UTF-8")

    # No name of another tensor by chance.
    name <> "/elites/"
  end

  # One process of this VM saves or loads a name.
  defp alone(store, name, work), do: Lock.hold({__MODULE__, store.path, name}, work)

  defp replace(store, {name, prefix}, archive, [solutions, objectives, measures, _cells]) do
    widths = widths(archive)
    rows = max(div(@chunk, Enum.sum(widths)), 1)
    count = div(byte_size(objectives), 8)
    columns = Enum.zip([solutions, objectives, measures], widths)
    head = %{version: @version, options: archive.options, count: count, rows: rows}

    with {:ok, set} <- other_set(store, name),
         head = Map.put(head, :set, set),
         {:ok, before} <- Store.names(store),
         :ok <- put(store, prefix <> set, columns, {count, rows}),
         :ok <- Store.put(store, name, bytes(head)) do
      used =
        for {name, _first} <- chunks(prefix <> set, count, rows), into: MapSet.new(), do: name

      # After an error the next save removes them.
      _removed = remove(store, for(own <- before, chunk?(own, prefix), own not in used, do: own))
      :ok
    end
  end

  # Bytes of a row of each column.
  defp widths(%{solution_size: size, measures: measures}), do: [4 * size, 8, 8 * measures]

  # A head that cannot be read now may be whole: its set stays as it is.
  defp other_set(store, name) do
    with {:ok, %{data: data}} <- Store.get(store, name),
         {:ok, %{set: set}} <- read_head(data, name) do
      {:ok, if(set == "a", do: "b", else: "a")}
    else
      {:error, %Error{kind: kind}} when kind in [:not_found, :corrupt] -> {:ok, "a"}
      {:error, _error} = failed -> failed
    end
  end

  defp bytes(head) do
    data = :erlang.term_to_binary(head)
    %{data: data, shape: {byte_size(data)}, type: {:u, 8}}
  end

  # Names and first rows.
  defp chunks(prefix, count, rows),
    do: for(first <- 0..(count - 1)//rows, do: {"#{prefix}#{div(first, rows)}", first})

  defp put(store, prefix, columns, {count, rows}) do
    chunks(prefix, count, rows)
    |> Enum.chunk_every(at_once(rows, columns))
    |> Enum.reduce_while(:ok, fn chunks, :ok ->
      tensors =
        for {name, first} <- chunks, do: {name, chunk(columns, first, min(rows, count - first))}

      put = Store.put_all(store, tensors, commit: false)
      {if(put == :ok, do: :cont, else: :halt), put}
    end)
  end

  defp at_once(rows, widths) do
    row = widths |> Enum.map(&width/1) |> Enum.sum()
    max(div(@at_once, rows * row), 1)
  end

  defp width({_data, width}), do: width
  defp width(width), do: width

  # Elements of four bytes, of which the store compresses each byte by place.
  defp chunk(columns, first, rows) do
    parts = for {data, width} <- columns, do: binary_part(data, first * width, rows * width)
    data = IO.iodata_to_binary(parts)
    %{data: data, shape: {div(byte_size(data), 4)}, type: {:u, 32}}
  end

  defp chunk?(name, prefix) do
    size = byte_size(prefix)

    case name do
      <<^prefix::binary-size(size), set, rest::binary>> when set in ~c"ab" ->
        match?({_number, ""}, Integer.parse(rest))

      _other ->
        false
    end
  end

  defp remove(_store, []), do: {:ok, true}

  defp remove(store, names),
    do: Call.run(&Native.store_delete(store.ref, &1, names, false))

  @doc "Reads the archive of a name. `new` makes an empty one of its options."
  @spec load(Store.t(), String.t(), (keyword -> {:ok, Archive.t()} | {:error, Error.t()})) ::
          {:ok, Archive.t()} | {:error, Error.t()}
  def load(store, name, new) do
    prefix = prefix!(name)

    alone(store, name, fn ->
      with {:ok, %{data: data}} <- Store.get(store, name),
           {:ok, head} <- read_head(data, name),
           {:ok, archive} <- empty(head, name, new),
           :ok <- fill(archive, store, prefix, head),
           do: {:ok, archive}
    end)
  end

  defp read_head(data, name) do
    case :erlang.binary_to_term(data, [:safe]) do
      %{version: @version, options: options, count: count, rows: rows, set: set} = head
      when is_list(options) and is_integer(count) and count >= 0 and is_integer(rows) and
             rows > 0 and set in ["a", "b"] ->
        {:ok, head}

      _other ->
        corrupt(name)
    end
  rescue
    ArgumentError -> corrupt(name)
  end

  defp empty(%{options: options}, name, new) do
    new.(options)
  rescue
    # Options of another version.
    ArgumentError -> corrupt(name)
  end

  defp corrupt(name) do
    details = %{what: "tensor #{inspect(name)}", reason: "no archive of this version"}
    {:error, %Error{kind: :corrupt, op: :load, details: details}}
  end

  defp fill(archive, store, prefix, %{count: count, rows: rows, set: set}) do
    widths = widths(archive)

    chunks(prefix <> set, count, rows)
    |> Enum.chunk_every(at_once(rows, widths))
    |> Enum.reduce_while(:ok, fn chunks, :ok ->
      with {:ok, parts} <- read(chunks, store, widths, {count, rows}),
           columns = for(column <- Enum.zip_with(parts, & &1), do: IO.iodata_to_binary(column)),
           {:ok, [status, _improvement]} <-
             Call.in_background(&Native.archive_add(archive.ref, &1, columns)),
           :ok <- all_new(status, prefix) do
        {:cont, :ok}
      else
        failed -> {:halt, failed}
      end
    end)
  end

  defp read(chunks, store, widths, {count, rows}) do
    Enum.reduce_while(chunks, {:ok, []}, fn {name, first}, {:ok, all} ->
      rows = min(rows, count - first)

      with {:ok, %{data: data}} <- Store.get(store, name),
           [_ | _] = parts <- parts(data, Enum.map(widths, &(&1 * rows))) do
        {:cont, {:ok, [parts | all]}}
      else
        {:error, _error} = failed -> {:halt, failed}
        [] -> {:halt, corrupt(name)}
      end
    end)
    |> then(fn
      {:ok, all} -> {:ok, Enum.reverse(all)}
      failed -> failed
    end)
  end

  defp parts(data, [first, second, third]) when byte_size(data) == first + second + third do
    <<solutions::binary-size(first), objectives::binary-size(second), measures::binary>> = data
    [solutions, objectives, measures]
  end

  defp parts(_data, _sizes), do: []

  # An elite that is not the first of its cell lies in another cell than when it was saved.
  defp all_new(status, prefix) do
    if :binary.copy(<<2>>, byte_size(status)) == status do
      :ok
    else
      details = %{what: "cells of #{prefix}", expected: "one for each elite", got: "others"}
      {:error, %Error{kind: :mismatch, op: :load, details: details}}
    end
  end
end

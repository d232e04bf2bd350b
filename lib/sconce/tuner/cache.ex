defmodule Sconce.Tuner.Cache do
  @moduledoc false
  # Entries in a folder, a file for each. A file is written beside and renamed, so that processes and VMs that write at
  # once lose nothing: the last entry of a key stays. The name of a file has a digest of the key and of the CPU, so that
  # machines with one home do not replace each other's entries.

  alias Sconce.{Config, Error, Files, Native}
  alias Sconce.Tuner.Entry

  # Entries beyond this number are removed, the oldest first.
  @most 1000
  @chunk 1_048_576

  @type machine :: %{
          cpu: String.t(),
          features: String.t(),
          library: String.t(),
          version: String.t()
        }

  @doc "The folder of the entries."
  @spec dir() :: Path.t()
  def dir,
    do: Config.get(:tuner_dir) || Path.join(:filename.basedir(:user_cache, "sconce"), "tuner")

  @doc "The facts that a measurement depends on."
  @spec machine() :: {:ok, machine} | {:error, Error.t()}
  def machine do
    case :persistent_term.get(__MODULE__, nil) do
      nil -> with {:ok, machine} <- found(), do: {:ok, kept(machine)}
      machine -> {:ok, machine}
    end
  end

  defp kept(machine) do
    :persistent_term.put(__MODULE__, machine)
    machine
  end

  defp found do
    with {:ok, info} <- Native.native_info(),
         {:ok, library} <- library() do
      features = for {name, true} <- Enum.sort(info.cpu), do: to_string(name)

      {:ok,
       %{
         cpu: "#{cpu()}, #{info.threads} threads",
         features: Enum.join(features ++ ["on", info.target], " "),
         library: library,
         version: Sconce.version()
       }}
    end
  end

  defp library do
    path = Path.join(to_string(:code.priv_dir(:sconce)), "native/sconce_nif.so")
    sums = path |> File.stream!([], @chunk) |> Enum.reduce(:erlang.md5_init(), &sum/2)
    {:ok, hex(:erlang.md5_final(sums))}
  rescue
    error in File.Error ->
      details = %{path: error.path, reason: to_string(:file.format_error(error.reason))}
      {:error, %Error{kind: :io, op: :tuner, details: details}}
  end

  defp sum(bytes, sums), do: :erlang.md5_update(sums, bytes)

  defp cpu do
    with {:ok, text} <- File.read("/proc/cpuinfo"),
         [_, name] <- Regex.run(~r/^(?:model name|CPU part)\s*:\s*(.+)$/m, text) do
      Entry.line(name)
    else
      _other -> apple() || to_string(:erlang.system_info(:system_architecture))
    end
  end

  defp apple do
    with true <- :os.type() == {:unix, :darwin},
         path when path != nil <- System.find_executable("sysctl"),
         {name, 0} <- System.cmd(path, ["-n", "machdep.cpu.brand_string"]),
         do: Entry.line(name),
         else: (_other -> nil)
  end

  @doc "The digest of a key: any term without functions and references."
  @spec digest(term) :: String.t()
  def digest(key),
    do:
      key |> :erlang.term_to_binary([:deterministic, minor_version: 2]) |> :erlang.md5() |> hex()

  defp hex(bytes), do: Base.encode16(bytes, case: :lower)

  @doc "The file of a key on this machine."
  @spec path(String.t(), String.t(), machine) :: Path.t()
  def path(kind, key, machine) do
    name = digest({key, machine.cpu, machine.features})
    Path.join(dir(), "#{String.replace(kind, " ", "-")}-#{name}.txt")
  end

  @doc """
  Reads the entry of a key. An entry of another key, machine or library is refused with the reason as text; so is a file
  that is not whole. `:none` if there is no file.
  """
  @spec read(Path.t(), String.t(), machine) :: {:ok, Entry.t()} | :none | {:error, String.t()}
  def read(path, key, machine) do
    with {:ok, bytes} <- File.read(path),
         {:ok, entry} <- Entry.decode(bytes),
         :ok <- fits(entry, machine) do
      if entry.key == key, do: {:ok, entry}, else: {:error, "the file is of another key"}
    else
      {:error, :enoent} -> :none
      {:error, reason} when is_atom(reason) -> {:error, to_string(:file.format_error(reason))}
      {:error, reason} -> {:error, reason}
    end
  end

  @doc "Whether an entry was measured on this machine with this library; the difference as text otherwise."
  @spec fits(Entry.t(), machine) :: :ok | {:error, String.t()}
  def fits(entry, machine) do
    Enum.find_value(
      [cpu: "CPU", features: "features", version: "version", library: "library"],
      :ok,
      fn {name, noun} ->
        {was, is} = {Map.fetch!(entry, name), Map.fetch!(machine, name)}
        if was != is, do: {:error, "measured with another #{noun}: #{was}, here #{is}"}
      end
    )
  end

  @doc "Writes an entry, and removes the oldest ones of too many."
  @spec write(Path.t(), Entry.t()) :: :ok | {:error, Error.t()}
  def write(path, entry) do
    # If the folder cannot be made, the file cannot be written.
    _ = File.mkdir_p(Path.dirname(path))

    encoded = Entry.encode(entry)

    with :ok <- readable(path, encoded),
         :ok <- Files.write(path, encoded, :tuner) do
      for old <- path |> Path.dirname() |> files() |> oldest(), do: File.rm(old)
      :ok
    end
  end

  defp readable(path, encoded) do
    if Entry.fits?(encoded) do
      :ok
    else
      details = %{path: path, reason: "its labels and text are too long"}
      {:error, %Error{kind: :io, op: :tuner, details: details}}
    end
  end

  defp oldest(files) when length(files) <= @most, do: []

  defp oldest(files) do
    time = fn file -> with {:ok, stat} <- File.stat(file, time: :posix), do: {:ok, stat.mtime} end
    files |> Enum.sort_by(time) |> Enum.take(length(files) - @most)
  end

  @doc "All files of entries."
  @spec files(Path.t()) :: [Path.t()]
  def files(dir \\ dir()) do
    case File.ls(dir) do
      {:ok, names} ->
        for name <- Enum.sort(names),
            name =~ ~r/\A[\w.-]+-[0-9a-f]{32}\.txt\z/,
            do: Path.join(dir, name)

      {:error, _reason} ->
        []
    end
  end
end

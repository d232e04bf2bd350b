defmodule Sconce.Build.Library do
  @moduledoc """
  Reads a native library without loading it, and installs it.

  Each library contains its name, for example `sconce-nif 0.1.0 x86_64-unknown-linux-gnu` between two zero bytes
  (`native/nif/src/lib.rs`). So a library of another version, or an archive of another target, is refused before it is
  installed.
  """

  @prefix "\0sconce-nif "
  @longest 200

  @doc """
  Returns the Rust target of this VM, from the name that Erlang was configured with.

      iex> Sconce.Build.Library.target("x86_64-pc-linux-gnu")
      "x86_64-unknown-linux-gnu"
  """
  def target(architecture \\ to_string(:erlang.system_info(:system_architecture))) do
    [cpu | system] = String.split(architecture, "-")
    cpu = Map.get(%{"amd64" => "x86_64", "arm64" => "aarch64"}, cpu, cpu)

    cond do
      Enum.any?(system, &String.starts_with?(&1, "darwin")) -> "#{cpu}-apple-darwin"
      "linux" in system -> "#{cpu}-unknown-linux-#{List.last(system)}"
      true -> Enum.join([cpu | system], "-")
    end
  end

  @doc "Returns the target of a native library of this version, or the reason why the bytes are none."
  def check(bytes, version) do
    case named(bytes) do
      [^version, target] -> {:ok, target}
      [other, target] -> {:error, of(other, target, version)}
      nil -> {:error, "is no native library of Sconce"}
    end
  end

  @doc "Returns `:ok` if the bytes are the native library of this version for this target, else the reason."
  def check(bytes, version, target) do
    case check(bytes, version) do
      {:ok, ^target} -> :ok
      {:ok, other} -> {:error, of(version, other, "#{version} for #{target}")}
      {:error, why} -> {:error, why}
    end
  end

  defp of(version, target, expected),
    do: "is the native library of Sconce #{version} for #{target}, expected #{expected}"

  defp named(bytes) do
    with {at, length} <- :binary.match(bytes, @prefix),
         rest = binary_part(bytes, at + length, min(@longest, byte_size(bytes) - at - length)),
         [name, _rest] <- :binary.split(rest, "\0"),
         [version, target] <- String.split(name, " ") do
      [version, target]
    else
      _ -> nil
    end
  end

  @doc """
  Writes a library beside the destination and renames it. A running VM may have the old file mapped, and overwriting
  it in place would crash the VM.
  """
  def install(bytes, destination) do
    File.mkdir_p!(Path.dirname(destination))
    beside = "#{destination}.#{System.pid()}-#{:rand.uniform(1_000_000_000)}"

    try do
      File.write!(beside, bytes)
      File.rename!(beside, destination)
    after
      File.rm(beside)
    end
  end
end

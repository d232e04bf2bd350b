Code.require_file("download.exs", __DIR__)
Code.require_file("library.exs", __DIR__)

defmodule Sconce.Build.Precompiled do
  @moduledoc """
  Finds the published native library of this version and target, by the checksums that the package carries.

  The file `checksums.txt` has one line for each archive, as `sha256sum` prints it, and a comment with the address of
  their folder. A copy from git has no such file and builds its library. An archive is one compressed library. It is
  kept in a cache, and each use compares its bytes with the checksum before anything reads them.
  """

  alias Sconce.Build.{Download, Library}

  @checksums "checksums.txt"

  @doc "Returns `%{url: url, archives: %{name => sha256}}`, or nil if the folder has no checksums."
  def published(root) do
    case File.read(Path.join(root, @checksums)) do
      {:ok, text} -> parse(text)
      {:error, :enoent} -> nil
    end
  end

  defp parse(text) do
    lines = String.split(text, "\n", trim: true)

    %{
      url:
        Enum.find_value(lines, fn line ->
          with "# url: " <> url <- line, do: url, else: (_ -> nil)
        end),
      archives:
        for <<digest::binary-64, "  ", name::binary>> <- lines, into: %{} do
          {name, digest}
        end
    }
  end

  @doc "Returns the name of an archive."
  def archive(version, target), do: "sconce_nif-#{version}-#{target}.so.gz"

  @doc "Returns the folder of downloaded archives: `SCONCE_CACHE_DIR`, or a folder of the user's cache."
  def cache do
    case System.get_env("SCONCE_CACHE_DIR", "") do
      "" -> to_string(:filename.basedir(:user_cache, "sconce"))
      path -> path
    end
  end

  @doc """
  Returns the library as bytes, or a text that says why not and what to do. `url` is the address of the folder of
  archives.
  """
  def library(published, version, target, url) do
    Download.ensure!([:crypto])
    name = archive(version, target)
    url = url || published.url
    cached = Path.join(cache(), name)

    with :ok <- absolute(cache()),
         {:ok, digest} <- fetch(published.archives, name, target),
         {:ok, bytes, from} <- archived(cached, digest, name, url),
         {:ok, library} <- opened(bytes, name, version, target) do
      if from == :network, do: keep(bytes, cached)
      {:ok, library}
    else
      {:error, why} -> {:error, text(name, why, url)}
    end
  end

  # A relative path would be resolved in the folder of a dependency.
  defp absolute(cache) do
    if Path.type(cache) == :absolute,
      do: :ok,
      else: {:error, "SCONCE_CACHE_DIR: #{cache} is relative, expected an absolute path"}
  end

  defp opened(bytes, name, version, target) do
    library = :zlib.gunzip(bytes)

    case Library.check(library, version, target) do
      :ok -> {:ok, library}
      {:error, why} -> {:error, "#{name}: #{why}"}
    end
  rescue
    ErlangError -> {:error, "#{name}: is no gzip file"}
  end

  defp fetch(archives, name, target) do
    with :error <- Map.fetch(archives, name) do
      {:error,
       "no library is published for #{target}, only #{Enum.join(Map.keys(archives), ", ")}"}
    end
  end

  defp archived(cached, digest, name, url) do
    with :missing <- cached(cached, digest),
         {:ok, bytes} <- download(name, digest, url),
         do: {:ok, bytes, :network}
  end

  defp cached(path, digest) do
    with {:ok, bytes} <- File.read(path),
         {:error, why} <- compare(bytes, digest, path) do
      Mix.shell().info("Removing #{why}")
      File.rm(path)
      :missing
    else
      {:error, _reason} -> :missing
      {:ok, bytes} -> {:ok, bytes, :cache}
    end
  end

  defp download(_name, _digest, nil), do: {:error, "no address is known"}

  defp download(name, digest, url) do
    address = url |> URI.parse() |> below(name) |> to_string()
    shown = Download.shown(address)
    Mix.shell().info("Downloading the native part of Sconce from #{shown}")

    case Download.get(address) do
      {:ok, bytes} -> compare(bytes, digest, shown)
      {:error, why} -> {:error, "#{shown}: #{why}"}
    end
  end

  defp below(uri, name),
    do: %{uri | path: String.trim_trailing(uri.path || "", "/") <> "/" <> name}

  defp compare(bytes, digest, place) do
    case sha256(bytes) do
      ^digest -> {:ok, bytes}
      other -> {:error, "#{place}: #{contents(bytes)}its SHA-256 is #{other}, expected #{digest}"}
    end
  end

  # The header of a gzip file has the name of the file inside; nothing is decompressed.
  defp contents(<<0x1F, 0x8B, 8, 8, _::binary-6, rest::binary>>) do
    case :binary.split(binary_part(rest, 0, min(100, byte_size(rest))), "\0") do
      [name, _] -> if String.printable?(name), do: "the file contains #{name}; ", else: ""
      _ -> ""
    end
  end

  defp contents(_bytes), do: ""

  # The cache saves a download, so a failure to write it is no error.
  defp keep(bytes, cached) do
    Library.install(bytes, cached)
  rescue
    error in [File.Error, File.RenameError] ->
      Mix.shell().info("not cached: #{Exception.message(error)}")
  end

  defp sha256(bytes), do: :crypto.hash(:sha256, bytes) |> Base.encode16(case: :lower)

  defp text(name, why, url) do
    """
    Sconce's native library is not installed: #{why}
    Do one of these and run the command again:
      * put #{name} into #{cache()}
      * set SCONCE_NATIVE_PATH to a library that was built elsewhere
      * set SCONCE_BUILD=1 to build it here, with Rust (https://rustup.rs) and a C compiler
      * set SCONCE_PRECOMPILED_URL to the address of a folder with the file#{if url, do: ", now " <> Download.shown(url)}
    """
    |> String.trim_trailing()
  end
end

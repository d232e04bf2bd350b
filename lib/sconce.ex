defmodule Sconce do
  @moduledoc """
  Native policies for games: models that read a frame, remember, and choose a controller input 60
  times a second, and that learn from replays and from play.

  The BEAM holds handles and small results; tensors stay in Rust. One native call is one whole step.

  | noun | what it is |
  |---|---|
  | `Sconce.Corpus` | games on disk, made from replays once, read by training many times |
  | `Sconce.Trainer` | a training run: start, watch, stop, resume |
  | `Sconce.Policy` | the weights of a Spec on a device |
  | `Sconce.Session` | the memory of a running game over a Policy |
  | `Sconce.Frame`, `Sconce.Action` | one game frame in, one controller input out |
  | `Sconce.Preset`, `Sconce.Config` | named settings of a run; where settings come from |
  | `Sconce.GPU` | GPUs and their memory |
  | `Sconce.Error` | what went wrong, as fields |

  `mix sconce.doctor` says whether this machine has what Sconce needs.
  """

  @version Mix.Project.config()[:version]

  @doc """
  The version of Sconce.

      iex> Sconce.version()
      #{inspect(@version)}
  """
  @spec version() :: String.t()
  def version, do: @version

  @doc """
  What the native library was built with, and what it found on this machine.

  `version`, `candle`, `rustler`, `rustc`, `target` and `profile` are strings, `cuda` is whether it was built for
  NVIDIA cards, `flash_attn` whether with flash attention, `threads` the number that the system gives this process, `cpu` a map of features found at run time (`amx_bf16` where this process may use the matrix unit).

      iex> {:ok, info} = Sconce.native_info()
      iex> info.version == Sconce.version()
      true
      iex> info.cpu |> Map.keys() |> Enum.sort()
      [:amx_bf16, :avx2, :avx512_bf16, :avx512_vnni, :avx512f, :fma, :neon]
  """
  @spec native_info() :: {:ok, map} | {:error, Sconce.Error.t()}
  def native_info, do: Sconce.Native.native_info()
end

defmodule Sconce.Session.Opening do
  @moduledoc false
  # Opens sessions: options for the native side, a snapshot that is restored, and the struct of the session.

  alias Sconce.{Error, Native, Projection, Session}
  alias Sconce.Native.Call
  alias Sconce.Policy.Spec
  alias Sconce.Session.{Catalogue, Remote}

  @doc "Opens a session by `open`, which takes a request of `begin/3` and returns its answer. The options are validated."
  @spec open(keyword, (tuple -> tuple)) :: {:ok, Session.t()} | {:error, Error.t()}
  def open(options, open) do
    with {:ok, project_out} <- Projection.pack(options[:project_out]),
         {:ok, ref, spec, info} <- open.({to_native(options), project_out, options[:snapshot]}) do
      {:ok, new(ref, local(ref, spec), options, info)}
    else
      {:error, error} -> {:error, mended(error)}
    end
  end

  defp mended(%Error{kind: :mismatch, details: %{expected: ":window"} = details} = error),
    do: %{error | details: Map.put(details, :mend, "mode: :window")}

  defp mended(error), do: error

  # The names of heads arrive from another node as text.
  defp local(%Remote{}, spec), do: Spec.new(spec)
  defp local(_ref, spec), do: spec

  @doc "Opens the native session by `open`, owned by this process."
  @spec begin(Spec.t(), (reference, map, term -> term), tuple) ::
          {:ok, reference, Spec.t(), map} | {:error, Error.t()}
  def begin(spec, open, {options, project_out, snapshot}) do
    with {:ok, session} <- Call.run(&open.(&1, options, project_out)),
         :ok <- resume(session, snapshot),
         {:ok, info} <- Native.session_info(session),
         do: {:ok, session, spec, info}
  end

  defp resume(_session, nil), do: :ok

  defp resume(session, snapshot) do
    with {:error, _error} = refused <- Session.native(session, :restore, [snapshot]) do
      Native.session_close(session)
      refused
    end
  end

  defp to_native(options) do
    %{
      mode: options[:mode],
      window_size: options[:window_size],
      sampling: options |> Keyword.take(Keyword.keys(Catalogue.schema(:sampling))) |> Map.new(),
      seed: options[:seed] || :rand.uniform(2 ** 53) - 1,
      frame_delay: options[:frame_delay],
      weights: Session.format(options[:weights]),
      rollback: options[:rollback],
      lane: if(options[:lane] != :auto, do: options[:lane])
    }
  end

  defp new(ref, spec, options, info) do
    %Session{
      ref: ref,
      spec: spec,
      controller?: Spec.controller?(spec),
      logits: options[:logits],
      mode: options[:mode],
      path: path(info.path),
      weights: Session.kept(info.weights),
      # The lane of most decisions: the lane of windows only if every decision computes a window.
      lane: lane(if(options[:mode] == :window, do: info.window_lane, else: info.lane)),
      step_us: info.cost.step_us,
      window_us: info.cost.window_us,
      device: options[:device]
    }
  end

  @doc "The path of this native name."
  @spec path(String.t()) :: :packed | :core
  def path("packed"), do: :packed
  def path("core"), do: :core

  @doc "The lane of this native name."
  @spec lane(String.t()) :: :inline | :worker
  def lane("inline"), do: :inline
  def lane("worker"), do: :worker
end

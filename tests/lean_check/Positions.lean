/-! What Lean's own parser sees in a file, one line each: where every command starts and ends, and
for every theorem and lemma where its word, its proof and its end are. -/

open Lean Parser

namespace Positions

def number (position : Option String.Pos.Raw) : String :=
  match position with
  | some found => String.append "\t" (Nat.repr found.byteIdx)
  | none => "\t-"

def line (file : Nat) (word : String) (a b c : Option String.Pos.Raw) : String :=
  String.append (Nat.repr file) (String.append "\t" (String.append word
    (String.append (number a) (String.append (number b) (String.append (number c) "\n")))))

def proofStart (value : Syntax) : Option String.Pos.Raw :=
  if value.getKind == ``Lean.Parser.Command.declValSimple then value[0].getTailPos?
  else value.getPos?

/-- What a quotation holds is not declared. -/
def isQuotation (kind : SyntaxNodeKind) : Bool :=
  kind == ``Lean.Parser.Term.quot || kind == ``Lean.Parser.Command.quot
    || kind == ``Lean.Parser.Term.dynamicQuot

partial def theorems (file : Nat) (stx : Syntax) (found : String) : String :=
  match stx with
  | .node _ kind args =>
    if isQuotation kind then
      found
    else if kind == ``Lean.Parser.Command.theorem then
      String.append found
        (line file "theorem" stx[0].getPos? (proofStart stx[3]) stx.getTailPos?)
    else if kind == `lemmaCommand then
      String.append found
        (line file "lemma" stx[1].getPos? (proofStart stx[4]) stx.getTailPos?)
    else
      let rec each (i : Nat) (found : String) : String :=
        if h : i < args.size then each (i + 1) (theorems file args[i] found) else found
      each 0 found
  | _ => found

partial def eachCommand (file : Nat) (input : InputContext) (context : ParserModuleContext)
    (state : ModuleParserState) (found : String) : String :=
  let (command, next, _) := parseCommand input context state {}
  let found := String.append found
    (line file "command" command.getPos? command.getTailPos? (some next.pos))
  if isTerminalCommand command then found
  else eachCommand file input context next (theorems file command found)

/-- Files are a folder, a first number and how many; each starts at its first command's byte. -/
partial def files (out folder : String) (env : Environment) (i : Nat) (starts : List Nat) :
    IO Unit :=
  match starts with
  | [] => pure ()
  | start :: rest => do
    let path := String.append folder (String.append "/" (String.append (Nat.repr i) ".lean"))
    let text ← IO.FS.readFile path
    let input : InputContext :=
      { inputString := text, fileName := path, fileMap := FileMap.ofString text }
    let handle ← IO.FS.Handle.mk out IO.FS.Mode.append
    handle.putStr (eachCommand i input { env := env, options := {} } { pos := ⟨start⟩ } "")
    handle.flush
    files out folder env (i + 1) rest

def print (out folder : String) (starts : List Nat) : Elab.Command.CommandElabM Unit :=
  fun _ state => do
    let now ← ST.Ref.get state
    let _ ← EIO.toBaseIO (files out folder now.env 0 starts)
    pure ()

end Positions

"""What a disk holds after a power cut, from the journal of faults.cpp: a file system that keeps what was synced, and of the rest anything."""
import os


class File:
    def __init__(self, content=b""):
        self.content, self.synced = bytearray(content), bytes(content)


class Folder:
    def __init__(self):
        self.names, self.synced = {}, {}


def calls(journal):
    """(op, inode, offset, bytes, path, to) of each call."""
    at = 0
    while at < len(journal):
        end = journal.index(b"\n", at)
        op, inode, offset, size, path, to = journal[at:end].decode().split("\t")
        at = end + 1 + int(size)
        yield op, int(inode), int(offset), journal[end + 1:at], path, to


# What a cut takes: bytes that were not synced, their place in the file (then it holds zeros), names that were not synced.
KINDS = ("bytes", "zeros", "names", "all")


class Disk:
    """Of a folder, as it is on the disk at the start."""

    def __init__(self, root):
        self.root, self.files, self.top = root, {}, self.load(root)

    def load(self, path):
        folder = Folder()
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                folder.names[entry.name] = self.load(entry.path)
            else:
                with open(entry.path, "rb") as file:
                    folder.names[entry.name] = File(file.read())
        folder.synced = dict(folder.names)
        return folder

    def find(self, path):
        """The folder of a path, and its name there."""
        folder, parts = self.top, os.path.relpath(path, self.root).split("/")
        for name in parts[:-1]:
            folder = folder.names[name]
        return folder, parts[-1]

    def folder_at(self, path):
        """None where no folder is."""
        if path == self.root:
            return self.top
        folder, name = self.find(path)
        entry = folder.names.get(name)
        return entry if isinstance(entry, Folder) else None

    def apply(self, op, inode, offset, data, path, to):
        if op == "sync":
            # By its path where it is a folder: file systems give the inode of a removed file to the next folder.
            if (folder := self.folder_at(path)) is not None:
                folder.synced = dict(folder.names)
            else:
                self.files[inode].synced = bytes(self.files[inode].content)
            return
        if op in ("write", "resize"):
            content = self.files[inode].content
            if op == "resize":
                del content[offset:]
            content.extend(bytes(max(0, offset - len(content))))
            content[offset:offset + len(data)] = data
            return
        folder, name = self.find(path)
        if op in ("open", "truncate"):
            file = folder.names.setdefault(name, File())
            self.files[inode] = file
            if op == "truncate":
                del file.content[:]
        elif op == "mkdir":
            folder.names[name] = Folder()
        elif op == "remove":
            del folder.names[name]
        elif op in ("rename", "link"):
            target, new = self.find(to)
            target.names[new] = folder.names[name]
            if op == "rename":
                del folder.names[name]
        else:
            raise ValueError(f"the disk knows no {op}")

    def left(self, kind):
        """Bytes by path, None for folders."""
        found = {}

        def visit(folder, path):
            names = folder.synced if kind in ("names", "all") else folder.names
            for name, entry in names.items():
                place = os.path.join(path, name)
                if isinstance(entry, Folder):
                    found[place] = None
                    visit(entry, place)
                elif kind == "names":
                    found[place] = bytes(entry.content)
                elif kind == "zeros":
                    size = len(entry.content)
                    found[place] = entry.synced[:size] + bytes(max(0, size - len(entry.synced)))
                else:
                    found[place] = entry.synced

        visit(self.top, "")
        return found


def build(left, folder):
    os.makedirs(folder)
    for path, content in left.items():
        place = os.path.join(folder, path)
        os.makedirs(place if content is None else os.path.dirname(place), exist_ok=True)
        if content is not None:
            with open(place, "wb") as file:
                file.write(content)


def cuts(disk, journal):
    """(number of calls done, kind, what is left, whether all calls are done) of each different disk after a cut."""
    seen, done = set(), list(calls(journal))
    for number, call in enumerate(done, start=1):
        disk.apply(*call)
        for kind in KINDS:
            left = disk.left(kind)
            mark = hash(frozenset(left.items()))
            if mark not in seen or number == len(done):
                seen.add(mark)
                yield number, kind, left, number == len(done)

"""Files that are malformed, or made to harm: refused in words, before anything of them is done."""

import re
import struct

import pytest

from jaxdae.multibody import read_mujoco

pytest.importorskip("mujoco")

GEOM = "<geom type='box' size='.1 .1 .1'/>"
BODY = f"<body name='b' pos='0 0 1'><joint name='k' axis='0 1 0'/>{GEOM}</body>"
MESH = "<geom type='mesh' mesh='m'/>"
INERTIAL = "<inertial mass='1' pos='0 0 0' diaginertia='1 1 1'/><geom"


def mjcf(inside="", after="", before=""):
    """A hinged box, with elements inside of its body, after the world and before it."""
    return (
        f"<mujoco>{before}<worldbody><body name='a'><joint name='h' axis='0 1 0'/>{GEOM}{inside}"
        f"</body></worldbody>{after}</mujoco>"
    )


def body(old, new):
    """Two boxes, the second of which has something else."""
    assert old in BODY
    return mjcf(BODY.replace(old, new))


LAUGHS = "".join(f"<!ENTITY a{i} '{'a' * 10 if not i else f'&a{i - 1};' * 10}'>" for i in range(10))
LINK = """<link name='{}'><inertial><mass value='1'/><inertia ixx='1' iyy='1' izz='1' ixy='0'
ixz='0' iyz='0'/></inertial></link>"""
LINKS = "".join(LINK.format(x) for x in ("base", "arm", "rod"))


def urdf(*joints, links=LINKS):
    """A robot description with joints `name, parent, child` and what they have beside."""
    found = "".join(
        f"<joint name='{name}' type='continuous'><parent link='{parent}'/><child link='{child}'/>"
        f"<axis xyz='0 1 0'/>{''.join(more)}</joint>"
        for name, parent, child, *more in joints
    )
    return f"<robot name='r'>{links}{found}</robot>"


HOSTILE = {
    "no XML": ("<mujoco>\x00\x01</mujoco>", r"it is no XML: .*line 1, column 8"),
    "binary": ("\x7fELF\x02\x01" + "\x00" * 5000, r"got '\\x7fELF.* of 5006 characters, which is"),
    "unclosed": (mjcf()[:-12], "it is no XML: unclosed token: line 1"),
    "wrong root": ("<sdf version='1.6'/>", "Unrecognized XML model type: 'sdf'"),
    "deep": (mjcf("<body>" * 3000 + "</body>" * 3000), "nesting is too deep"),
    "billion laughs": (
        f"<!DOCTYPE r [{LAUGHS}]><mujoco model='&a9;'/>", "declares the entity 'a0' in line 1"
    ),
    "file as entity": (
        "<!DOCTYPE r [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><mujoco/>", "the entity 'x'"
    ),
    "include of elsewhere": (
        mjcf(before="<include file='/etc/passwd'/>"), "file of <include> in line 1 is '/etc/passwd'"
    ),
    "include by network": (
        mjcf(before="<include file='http://example.com/x.xml'/>"), "nothing is fetched"
    ),
    "include of nothing": (
        mjcf(before="<include file='nowhere/x.xml'/>"),
        "<include> in line 1 includes 'nowhere/x.xml', which is no file",
    ),
    "mesh elsewhere": (
        mjcf(MESH, "<asset>\n<mesh name='m' file='/dev/zero'/></asset>"),
        "file of <mesh> 'm' in line 2 is '/dev/zero'",
    ),
    "folder of Windows": (
        mjcf(before="<compiler meshdir='C:\\secret'/>"), "meshdir of <compiler> in line 1 is 'C:"
    ),
    "mesh of home": (
        urdf(links=LINKS.replace(
            "</link>", "<visual><geometry><mesh filename='~/m.stl'/></geometry></visual></link>", 1
        )),
        "filename of <mesh> in line 2 is '~/m.stl'",
    ),
    "endless copies": (
        mjcf(f"<replicate count='100'><replicate count='1e4'>{GEOM}</replicate></replicate>"),
        r"<replicate> in line 1 asks for 1e\+06 by count; at most 2000 are read",
    ),
    "endless cloth": (
        mjcf("<flexcomp name='f' type='grid' count='100000 100000 1' spacing='1 1 1'/>"),
        r"<flexcomp> 'f' in line 1 asks for 1e\+10 by count",
    ),
    "endless field": (
        mjcf(after="<asset><hfield name='f' nrow='1000000' ncol='1e400' size='1 1 1 1'/></asset>"),
        "<hfield> 'f' in line 1 asks for inf by nrow, ncol",
    ),
    "endless numbers": (mjcf(before="<size nuser_body='2000000000'/>"), "by nuser_body"),
    "not a number": (body("0 0 1", "nan 0 1"), "pos of the body 'b' is nan 0 1; give finite"),
    "infinite": (body("0 0 1", "0 inf 1"), "pos of the body 'b' is 0 inf 1"),
    "too large": (body("0 0 1", "0 1e300 1"), r"pos of the body 'b' is 0 1e\+300 1; .*below"),
    "beyond doubles": (body("0 0 1", "0 1e400 1"), "number is too large in attribute 'pos'.*"),
    "spring of no number": (
        body("<joint", "<joint stiffness='nan'"), "stiffness of the joint 'k' is nan"
    ),
    "damper of no number": (
        body("<joint", "<joint damping='nan'"), "damping of the joint 'k' is nan"
    ),
    "angle of no number": (body("<joint", "<joint ref='nan'"), "of the joint 'k' is nan"),
    "gravity": (mjcf(before="<option gravity='0 0 nan'/>"), "gravity is 0 0 nan"),
    "gear": (
        mjcf(after="<actuator><motor name='m' joint='h' gear='nan'/></actuator>"),
        "gear of the actuator 'm' is nan",
    ),
    "coupling": (
        mjcf(after="<equality><joint name='e' joint1='h' polycoef='nan 0 0 0 0'/></equality>"),
        "data of the equality 'e' is nan",
    ),
    "code": (body("0 0 1", "__import__(&quot;os&quot;) 0 1"), "attribute 'pos'"),
    "negative mass": (body("<geom", INERTIAL.replace("mass='1'", "mass='-1'")), "mass.*'b'"),
    "inertia of a rotor": (
        body("<joint", "<joint armature='-.2'"), r"armature of the joint 'k' is -0\.2; it is"
    ),
    "friction that drives": (
        mjcf(after="<tendon><fixed name='t' frictionloss='-3'><joint joint='h' coef='1'/></fixed>"
             "</tendon>"),
        "frictionloss of the tendon 't' is -3; it is not negative",
    ),
    "inertia": (
        body("<geom", INERTIAL.replace("diaginertia='1 1 1'", "fullinertia='1 1 1 5 0 0'")),
        "inertia must have positive eigenvalues.*'b'",
    ),
    "zero axis": (body("0 1 0", "0 0 0"), "axis too small.*'k'"),
    "two bodies": (body("'b'", "'a'"), "repeated name 'a' in body"),
    "body that is not there": (
        mjcf(after="<equality><connect name='p' body1='a' body2='c' anchor='0 0 0'/></equality>"),
        "unknown element 'c'.*'p'",
    ),
    "body with itself": (
        mjcf(after="<equality><connect name='p' body1='a' body2='a' anchor='0 0 0'/></equality>"),
        "'a' is repeated.*'p'",
    ),
    "two grounds": (
        mjcf(after="<equality><weld name='w' body1='g'/></equality>").replace(
            "<worldbody>", "<worldbody><body name='g'/>"
        ),
        "the equality 'w' is between 'g' and the world, which never move",
    ),
    "one rigid body": (
        mjcf("<body name='g'/>", "<equality><weld name='w' body1='g' body2='a'/></equality>"),
        "between 'g' and 'a', which are fixed to each other",
    ),
    "tendon": (
        mjcf(
            "<site name='s'/><site name='u'/>",
            "<tendon><spatial name='t'><site site='s'/><site site='u'/></spatial></tendon>",
        ),
        "the length of the tendon 't' is 0 m in every position",
    ),
    "plugin": (
        mjcf(after="<extension><plugin plugin='os.system'/></extension>"),
        "plugin os.system not found",
    ),
    "command of a compiler": (mjcf(before="<compiler exec='rm'/>"), "unrecognized attribute: 'ex"),
    "face": (
        mjcf(MESH, "<asset><mesh name='m' vertex='0 0 0 1 0 0 0 1 0 0 0 1' face='0 1 9'/></asset>"),
        "vertex index 9 does not exist.*'m'",
    ),
    "links in a circle": (
        urdf(("one", "rod", "arm"), ("two", "arm", "rod")),
        r"the links (arm > rod > arm|rod > arm > rod) bear each other in a circle",
    ),
    "link on itself": (urdf(("one", "arm", "arm")), "the links arm > arm bear each other"),
    "link of two joints": (
        urdf(("one", "base", "arm"), ("two", "base", "rod"), ("three", "rod", "arm")),
        r"'one' and 'three' both move the link 'arm', .*: cuts=\('three',\)",
    ),
    "several roots": (urdf(("one", "base", "arm")), "2 links have no joint .*: base, rod"),
    "link that is not there": (
        urdf(("one", "base", "leg")), "the child of the joint 'one' is 'leg'; links .* base, arm"
    ),
    "joint without a parent": (
        urdf(("one", "base", "arm")).replace("<parent link='base'/>", ""),
        "the parent of the joint 'one' is None",
    ),
    "two joints": (urdf(("one", "base", "arm"), ("one", "arm", "rod")), "two joints are called"),
    "two links": (urdf(links=LINKS + LINK.format("rod")), "two links are called 'rod'"),
    "link without a name": (urdf(links="<link/>"), "one of its links has no name"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_the_element(name):
    text, words = HOSTILE[name]
    with pytest.raises(ValueError, match=rf"(?s)^read_mujoco: .*{words}"):
        read_mujoco(text)


@pytest.mark.parametrize(
    ("text", "of"),
    [
        (body("<joint", "<joint damping='-.5'"), r"the joint 'k' \(-0\.5\)"),
        (mjcf(after="<actuator><motor name='m' joint='h' damping='-2'/></actuator>"),
         r"the actuator 'm' \(-2\)"),
        (mjcf(after="<tendon><fixed name='t' damping='-3'><joint joint='h' coef='1'/></fixed>"
              "</tendon>"), r"the tendon 't' \(-3\)"),
    ],
)  # fmt: skip
def test_dampers_that_drive_are_read_as_mujoco_does_and_said(text, of):
    text = text.replace(
        "<mujoco>", "<mujoco><default><geom contype='0' conaffinity='0'/></default>"
    )
    with pytest.warns(RuntimeWarning, match=f"negative damping of {of}: it drives the motion"):
        read_mujoco(text)


def test_names_that_look_like_commands_are_names(tmp_path):
    name = f"__import__('os').system('touch {tmp_path}/done')"
    system = read_mujoco(mjcf().replace("'a'", f'"{name}"')).system
    assert system.bodies[0].name == name
    assert list(tmp_path.iterdir()) == []


TETRAHEDRON = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"


def test_files_beside_a_file_are_read_and_those_that_harm_are_not(tmp_path):
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "m.obj").write_text(TETRAHEDRON)
    (tmp_path / "asset.xml").write_text(
        "<mujoco><asset><mesh name='m' file='m.obj'/></asset></mujoco>"
    )
    path = tmp_path / "model.xml"
    path.write_text(
        "<!-- a -- b --><mujoco><compiler meshdir='parts'/><include file='asset.xml'/><worldbody>"
        f"<body><joint/>{MESH}</body></worldbody></mujoco>"
    )
    # One kilogram for each thousandth of the volume, a sixth.
    assert abs(read_mujoco(path).system.bodies[0].mass - 1000 / 6) < 1e-6
    (tmp_path / "asset.xml").write_text("<mujoco><include file='model.xml'/></mujoco>")
    with pytest.raises(ValueError, match=r"includes 'model\.xml', in which it lies"):
        read_mujoco(path)
    (tmp_path / "asset.xml").write_text("<mujoco><asset><mesh file='/dev/zero'/></asset></mujoco>")
    with pytest.raises(ValueError, match="file of <mesh> in line 1 is '/dev/zero'"):
        read_mujoco(path)
    # A header that promises four thousand million faces.
    (parts / "m.stl").write_bytes(b" " * 80 + struct.pack("<I", 4_000_000_000) + b"\0" * 50)
    (tmp_path / "asset.xml").write_text(
        "<mujoco><asset><mesh name='m' file='m.stl'/></asset></mujoco>"
    )
    with pytest.raises(ValueError, match=r"(?s)^read_mujoco: .*(m\.stl|'m')"):
        read_mujoco(path)
    path.write_bytes(bytes(range(256)) * 40)
    with pytest.raises(ValueError, match=re.escape("it is no XML")):
        read_mujoco(path)
